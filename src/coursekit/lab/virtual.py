"""Virtual GPUs with the numbers of the book's presets, as fast as one was recorded, and a picture
of their step.

with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
    ...
    with gpu.step() as step:
        train()
show_step(step, "stage 3")
"""

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import nn

from coursekit.planner.links import BANDWIDTH_SHARE, host_rate, link_rates
from ranklab.measure.slim_trace import busy
from ranklab.virtual import GPU, VirtualGPU, VirtualGPUs, VirtualStep
from shardlab.gpt import GPT, GPTConfig, next_token_loss

from ..formulas import quantities
from ..formulas.presets import HARDWARE, WITHOUT_BF16, rows_of_table
from ..show.figures import trace_figure
from ..show.format import format_as
from .nccl import NCCLLinks

VIRTUAL_SIZES = dict(
    layers=4, hidden=2048, heads=16, max_sequence=2048, vocabulary=50304, tied_head=0
)


def virtual_gpus(count: int, gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPUs:
    """Rank 0 of so many of a preset's GPUs."""
    return VirtualGPUs(count, recorded_gpu(gpu, ranks_per_node))


def virtual_gpu(gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPU:
    """A preset's GPU for a rank among real ones."""
    return VirtualGPU(recorded_gpu(gpu, ranks_per_node))


CLOCK = {row["name"]: float(row["value"]) for row in rows_of_table("virtual.csv")}
OF_THE_CLOCK = CLOCK.keys() & {field.name for field in fields(GPU)}


def recorded_gpu(name: str, ranks_per_node: int = 8) -> GPU:
    """A preset's GPU at the shares of its datasheet that were recorded on an H100 or fitted to its
    steps (data/virtual.csv), with messages as NCCL sends them. Products have a rate in 16 bits, and
    in fp32 and TF32 where data/hardware.csv has one."""
    chip, row, products = quantities(gpu=name), HARDWARE[name], CLOCK["product_share"]
    formats = [torch.float16] + [torch.bfloat16] * (name not in WITHOUT_BF16)
    rates = dict.fromkeys(formats, products * chip["flops_per_second"])
    of_fp32 = (row[f"dense_tflops_{kind}"] for kind in ("fp32", "tf32"))
    fp32, tf32 = (products * float(f"{tflops or 0}e12") for tflops in of_fp32)
    node, card = link_rates(name)
    switch = CLOCK.get(f"switch_share_{row['switch']}", 0.0)
    return GPU(
        rates | ({torch.float32: fp32} if fp32 else {}),
        CLOCK["copy_share"] * chip["memory_bytes_per_second"],
        NCCLLinks(
            node, card, ranks_per_node, switch_bytes_per_second=switch * node / BANDWIDTH_SHARE
        ),
        host_bytes_per_second=host_rate(name),
        tf32_flops_per_second=tf32,
        memory_bytes=chip["gpu_memory_bytes"] - int(CLOCK["context_bytes"]),
        name=name,
        compute_capability=tuple(map(int, row["compute_capability"].split("."))),
        **{one: CLOCK[one] for one in OF_THE_CLOCK},
    )


def gpt_in_bf16(**sizes) -> GPT:
    """A GPT in bf16, drawn in it: fake parameters cannot change their dtype. It has the book's
    sizes where no other is given."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        return GPT(GPTConfig(**VIRTUAL_SIZES | sizes))
    finally:
        torch.set_default_dtype(torch.float32)


def even_layers(model: GPT) -> list[nn.Module]:
    """A GPT's blocks, the first with the embedding and the last with the head: so a pipeline cuts
    them evenly by itself."""
    first, *middle, last = model.blocks
    return [nn.Sequential(model.embedding, first), *middle, nn.Sequential(last, model.head)]


def virtual_step(
    cut: Callable[..., tuple[nn.Module, torch.optim.Optimizer]],
    loss=next_token_loss,
    sizes: dict | None = None,
    **options,
) -> VirtualStep:
    """A step of rank 0 of eight virtual H100s. `cut(model, **options)` gives the parallel model
    and its optimizer."""
    with virtual_gpus(8) as gpu:
        model, optimizer = cut(gpt_in_bf16(**sizes or {}), **options)
        tokens = torch.zeros(2, 2048, dtype=torch.long)

        def train():
            loss(model(tokens), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        train()
        with gpu.step() as step:
            train()
    return step


PHASES = dict(forward="forward", backward="backward", update="weight_gradient")
AS_ONE = 1 / 1000  # of the step: what is nearer than that is one bar


def show_step(step: VirtualStep, title: str):
    """Draw the step in a notebook."""
    from IPython.display import display

    display(virtual_step_figure(step, title))


def virtual_step_figure(step: VirtualStep, title: str):
    """A row for each stream, with a colour for each phase, and one for the messages; hatched where
    nothing computes."""

    def bars(words, colour, spans):
        drawn = busy(((s.start, s.end) for s in spans), near=AS_ONE * step.end)
        return words, colour, [(start / 1e9, (end - start) / 1e9) for start, end in drawn]

    rows = {}
    for lane in dict.fromkeys(["compute", *(span.stream for span in step.spans)]):
        own = [span for span in step.spans if span.stream == lane]
        if isinstance(lane, str):
            kinds = {kind: [s for s in own if s.phase == kind] for kind in PHASES}
            rows[lane] = [bars(kind, PHASES[kind], spans) for kind, spans in kinds.items()]
        else:
            rows.setdefault("messages", []).append(bars("messages", "communication", own))
    gaps = [gap for gap in step.gaps if gap.stream == "compute"]
    rows["compute"].append(bars("idle", "idle", gaps))
    idle, whole = (
        format_as(seconds, "short duration") for seconds in (step.idle_seconds(), step.seconds)
    )
    return trace_figure(f"{title}<br>{idle} of {whole} nothing computes, virtual", rows)
