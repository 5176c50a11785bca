"""Lab 7: the formulas that a rank's bytes must equal, and the tables."""

from typing import NamedTuple

from torch.cuda import is_available

from coursekit.formulas import RECIPES, evaluate
from coursekit.lab import small_gpt
from coursekit.show.tables import Table
from shardlab.tensor_parallel import vocabulary_parallel_loss

LAYOUTS = {
    "tensor parallel": {},
    "and sequence parallel": dict(own_tokens=True),
    "gathered again in backward": dict(own_tokens=True, regather=True),
}


class KeptAndSent(NamedTuple):
    model_states: int
    kept_for_backward: int
    sent_in_a_step: int


def split_loss(model, batch):
    return vocabulary_parallel_loss(model(batch[0]), batch[1], model.config.vocabulary)


def given_to_formulas(ranks, rank=0, own_tokens=False, regather=False):
    config = small_gpt().config
    given = dict(dropout=config.dropout, fused_attention=int(config.fused_attention))
    given |= dict(sequence_parallel=int(own_tokens), regather=int(regather), microbatch=4)
    given |= dict(sequence=32, accumulation_steps=1, tensor_parallel=ranks, tensor_rank=rank)
    return given | config.quantities()


def by_formula(ranks, **layout):
    names = ["tensor_states_bytes", "tensor_activation_bytes", "tensor_sent_bytes"]
    adam = dict(allow_unused=True, **RECIPES["fp32 Adam"].quantities)
    givens = (given_to_formulas(ranks, rank, **layout) for rank in range(ranks))
    return [KeptAndSent(*evaluate(names, **adam, **given).values()) for given in givens]


def beside_formula(on_ranks):
    """Rank 0 of each layout. AssertionError where a rank's bytes are not the formula's. On a GPU
    attention keeps other tensors, so states and messages alone are compared there."""
    compared = (0, 2) if is_available() else (0, 1, 2)
    for words, found in on_ranks.items():
        pairs = zip(found, by_formula(len(found), **LAYOUTS[words]))
        assert all(own[k] == wanted[k] for (own, _), wanted in pairs for k in compared), words
    alone = {"one rank, by formula": by_formula(1)[0]}
    return alone | {words: own[0][0] for words, own in on_ranks.items()}


def without_counters(ledger, model):
    parameters, gradients, optimizer = ledger.bytes[:3]
    return parameters + gradients + optimizer - 4 * len(list(model.parameters()))


def percent_kept(weighed):
    """Activations in percent of those of one rank, by the names of the predictions."""
    (_, alone), *rest = weighed.items()
    shares = {words: own.kept_for_backward / alone.kept_for_backward for words, own in rest}
    return {f"{words}, percent kept": round(100 * share, 1) for words, share in shares.items()}


def given_to_explorer(on_ranks):
    """The small GPT on these ranks, and what rank 0's ledger found at its peak."""
    peak, parts = on_ranks[0][1], ("optimizer", "gradients", "activations", "temporaries")
    measured = {f"{part}_at_tensor_peak_bytes": getattr(peak, part) for part in parts}
    measured["tensor_parameter_bytes"] = peak.parameters
    return dict(measured=measured, recipe="fp32 Adam", **given_to_formulas(len(on_ranks)))


def change_percent(losses):
    """The change of the mean of the last five losses, in percent of the first run's."""
    last = {words: sum(own[-5:]) / 5 for words, own in losses.items()}
    without = next(iter(last.values()))
    return {words: 100 * (loss / without - 1) for words, loss in last.items()}


def table_of_faults(faulty, change):
    rows = []
    for words, on_ranks in faulty.items():
        losses, _, apart = on_ranks[0]
        worst = max(own[1] for own in on_ranks)
        rows.append([words, f"{losses[0]:.4f}", f"{sum(losses[-5:]) / 5:.4f}"])
        rows[-1] += [f"{change[words]:+.2f} %", f"{apart:.0e}", f"{worst:.0e}"]
    heads = ["loss, step 1", "at the end", "change", "copies apart", "worst gradient"]
    return Table(["", *heads], rows)
