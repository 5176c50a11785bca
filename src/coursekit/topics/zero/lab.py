"""Lab 6: its model and tokens, the formulas that ranks' bytes must equal, its tables."""

from collections import namedtuple

import torch

from coursekit import formulas
from coursekit.lab import small_gpt
from coursekit.show.tables import Table, in_words
from coursekit.topics.zero.zeros import with_zeros
from ranklab.ranks import rank_device
from shardlab.gpt import GPTConfig, next_token_loss

SIZES = dict(layers=3, hidden=45, heads=5, vocabulary=101, max_sequence=16, tied_head=0)
COUNTED = formulas.evaluate(["parameters"], **GPTConfig(**SIZES).quantities())
SMALL_GPT = COUNTED | dict(data_parallel=4, zero_stage=3)  # where explorers begin
FP32_BYTES = dict(parameter_element_bytes=4, gradient_element_bytes=4)
STAGES_AND_MICROBATCHES = [(stage, microbatches) for stage in range(4) for microbatches in (1, 4)]


# of a rank, in bytes
States = namedtuple("States", ["parameters", "gradients", "optimizer"])


def part_loss(model, part):
    """The loss of two sequences of 16 tokens, the same whenever the part is asked for."""
    generator = torch.Generator().manual_seed(part)
    tokens = torch.randint(SIZES["vocabulary"], (2, 16), generator=generator).to(rank_device())
    return next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])


def models(nbytes):
    return round(nbytes / (4 * SMALL_GPT["parameters"]), 3)


def flat_tensors(stage):
    """Elements of each tensor that a stage cuts: the whole model, or a unit of it."""
    model = small_gpt(**SIZES)
    units = [model.embedding, *model.blocks, model.head] if stage == 3 else [model]
    each = [[p.numel() for p in unit.parameters()] for unit in units]
    return [sum(elements) for elements in each] if stage else each[0]


def on_each_rank(formula, stage, n, **given):
    """A formula's bytes on each of n ranks, added up over the flat tensors."""
    given |= dict(zero_stage=stage, data_parallel=n)
    flats = flat_tensors(stage)
    return [sum(formula(parameters=one, rank=r, **given) for one in flats) for r in range(n)]


def sent_by_formula(stage, k, n):
    return on_each_rank(formulas.zero_sent_bytes, stage, n, accumulation_steps=k, **FP32_BYTES)


def table_of_stages(kept):
    """Stage -> rank -> States. AssertionError where a rank's bytes are not the formula's."""
    rows = []
    for stage, on_ranks in kept.items():
        totals, recipe = list(map(sum, on_ranks)), formulas.RECIPES["fp32 Adam"].quantities
        flats, updated = (len(flat_tensors(one)) for one in (stage, stage % 3))
        states = on_each_rank(formulas.zero_states_bytes, stage, len(totals), **recipe)
        wanted = [one + 4 * updated for one in states]  # a counter of each
        assert totals in (wanted, with_zeros(wanted, stage, flat_tensors(stage), updated)), stage
        rows.append([f"stage {stage}", flats, *on_ranks[0], totals[0], totals[-1]])
    heads = ["flat tensors", "parameters", "gradients", "states", "rank 0"]
    return Table(["bytes", *heads, f"rank {len(totals) - 1}"], rows)


def table_of_losses(resumed, plain):
    """Stage -> rank -> step -> loss, beside the plain losses. AssertionError above rounding."""
    rows = []
    for stage, losses in resumed.items():
        off = [abs(sum(own[s] for own in losses) / len(losses) / plain[s] - 1) for s in losses[0]]
        assert max(off) < 1e-12, (stage, off)
        rows.append([f"stage {stage}", *in_words(off)])
    return Table(["relative difference in step", *losses[0]], rows)


def chain_beside_formula(timeline):
    """Bytes that are whole at most and between forward and backward; those beside the shards."""
    held = [point.bytes for point in timeline]
    peak = max(held, key=sum)
    between = [point.bytes.gathered for point in timeline if point.phase == "forward"][-1]
    found = max(one.gathered for one in held), between, sum(peak) - sum(peak[:2])
    assert found[0] == 4 * 128 * 128
    unit = dict(zero_unit_parameters=128 * 128, zero_root_parameters=0)
    formula = formulas.zero_transient_bytes(**unit, **FP32_BYTES)
    heads = ["whole_at_most", "between", "besides_the_shards"]
    rows = {"measured": found, "formula": (found[0], 0, formula)}
    return {name: dict(zip(heads, row)) for name, row in rows.items()}
