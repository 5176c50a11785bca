"""Lab 10 beside its cells: steps of its GPT, which weigh() returns, by formulas and in tables."""

import torch

from coursekit.formulas import RECIPES, evaluate
from coursekit.show.tables import Table
from coursekit.topics.activation_checkpointing import explorer
from shardlab.gpt import GPTConfig
from shardlab.recompute import checkpoint, selective

VECTOR_BYTES = 4 * 8 * 64 * 64  # of one tensor of the residual stream
WEIGHED = dict(microbatch=8, sequence=64, accumulation_steps=1, first_step=1, dropout=0)


def given(config: GPTConfig, by=None, n: int = 1) -> dict:
    """The quantities of a step in fp32 that ends with backward: no optimizer."""
    policy = 0 if by is None else 2 if by is selective.checkpoint_selective else 3
    chosen = dict(
        recompute_policy=policy, recompute_every=n, fused_attention=1, optimizer_moments=0
    )
    return {**RECIPES["fp32 SGD momentum"].quantities, **config.quantities(), **WEIGHED, **chosen}


def from_formulas(*way, names: tuple = (), **changed) -> dict[str, float]:
    kept = ["kept_activation_bytes", "kept_layers_bytes", "recompute_peak_bytes", *names]
    of = evaluate(kept, allow_unused=True, **{**given(*way), **changed})
    return of | dict(outside_bytes=of["kept_activation_bytes"] - of["kept_layers_bytes"])


def more_operations(config: GPTConfig, *way) -> float:
    return from_formulas(config, *way, names=["recomputed_share"])["recomputed_share"]


def blocks_keep(step: dict) -> float:
    """Vectors, in the graph or in a closure: all but what batch, head and loss keep."""
    here = step["at_loss"].activations + step["at_loss"].temporaries
    return round((here - from_formulas(step["model"].config)["outside_bytes"]) / VECTOR_BYTES, 1)


def table_of_steps(steps: dict) -> Table:
    gradients = [[each.grad for each in step["model"].parameters()] for step in steps.values()]
    rows = []
    for (name, step), own in zip(steps.items(), gradients):
        forwards = [point.operation for point in step["ledger"].timeline].count("gelu")
        vectors = blocks_keep(step), step["ledger"].peak.bytes.total / VECTOR_BYTES
        same = f"{sum(map(torch.equal, own, gradients[0]))} of {len(own)}"
        rows.append([name, forwards, *(f"{each:.1f}" for each in vectors), same])
    heads = ["forwards of blocks", "blocks keep", "peak of the step", "gradients, same bits"]
    return Table(["in vectors", *heads], rows)


def table_of_ways(ways: dict, steps: dict) -> Table:
    """The bytes beside the formulas. On a CPU they are equal, and peaks within a percent."""
    rows = []
    for name, step in steps.items():
        kept, _, peak, _ = from_formulas(step["model"].config, *ways[name]).values()
        own, highest = step["at_loss"].activations, step["ledger"].peak.bytes.total
        near = own == kept and abs(highest - peak) <= 0.01 * highest
        assert near or next(step["model"].parameters()).is_cuda, (name, own, kept, highest, peak)
        rows.append([name, kept, own, peak, highest])
    heads = ["kept, formula", "kept, ledger", "peak, formula", "peak, ledger"]
    return Table(["recomputed (columns in bytes)", *heads], rows)


def table_of_times(times: dict, ways: dict, config: GPTConfig) -> Table:
    """The fastest step of each way, by how much it is longer, and by how much by operations."""
    rows = []
    for name, own in times.items():
        more = min(own) / min(times["nothing"]) - 1, more_operations(config, *ways[name])
        rows.append([name, f"{1000 * min(own):.0f}", *(f"{round(100 * m):+} %" for m in more)])
    return Table(["recomputed", "ms", "longer by", "operations by formula"], rows)


def start_of_explorer(step: dict) -> dict:
    """The GPT with each block in a checkpoint, and what the blocks of its step keep."""
    start = given(step["model"].config, checkpoint) | dict(sequence_parallel=0, regather=0)
    kept = step["at_loss"].activations - from_formulas(step["model"].config)["outside_bytes"]
    start = {name: start[name] for name in explorer.RECOMPUTE.inputs if name in start}
    return {**start, "measured": {"rank_layers_kept_bytes": kept}}


def bytes_of_blocks(config: GPTConfig) -> tuple[int, ...]:
    """Arguments of blocks_to_recompute in a second microbatch, and the bytes of what is there."""
    names = ["layer_activation_bytes", "residual_bytes", "layer_work_bytes", "logit_bytes"]
    names += ["batch_bytes", "parameter_bytes", "gradient_bytes", "head_gradient_bytes"]
    of = from_formulas(config, names=names, accumulation_steps=2)
    kept, residual, work, logits, batch, *states, head = (of[name] for name in names)
    # in a block's backward: its output's gradient, and the tied table's, which waits
    work, loss = work + residual + head + 8, of["outside_bytes"] - batch + 2 * logits + 8
    return config.layers, kept, residual, work, loss, sum(states) + batch
