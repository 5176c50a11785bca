"""Virtual GPUs with the numbers of the book's presets, and a picture of their step.

with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
    ...
    with gpu.step() as step:
        train()
show_step(step, "stage 3")
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from coursekit.planner.fits import family_of
from coursekit.planner.speeds import BANDWIDTH_SHARE, host_rate, link_rates
from ranklab.virtual import GPU, Links, NCCLLinks, VirtualGPU, VirtualGPUs, VirtualStep
from shardlab.gpt import GPT, GPTConfig, next_token_loss

from ..formulas import quantities
from ..formulas.presets import WITHOUT_BF16, rows_of_table
from ..show.svg.virtual import virtual_step_svg

VIRTUAL_SIZES = dict(
    layers=4, hidden=2048, heads=16, max_sequence=2048, vocabulary=50304, tied_head=0
)


def virtual_gpus(count: int, gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPUs:
    """Rank 0 of so many of a preset's GPUs."""
    return VirtualGPUs(count, preset_gpu(gpu, ranks_per_node))


def virtual_gpu(gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPU:
    """A preset's GPU for a rank among real ones."""
    return VirtualGPU(preset_gpu(gpu, ranks_per_node))


SWITCHES_ADD = "H100", "H200", "B200", "GB200", "B300", "GB300"  # NVLink's, NVLS
HARDWARE = {row["name"]: row for row in rows_of_table("hardware.csv")}


def preset_gpu(name: str, ranks_per_node: int = 8) -> GPU:
    """Everything runs at four fifths of its datasheet: large products, memory and links. Products
    have a rate in 16 bits, and in fp32 and TF32 where data/hardware.csv has one."""
    chip = quantities(gpu=name)
    formats = [torch.float16] + [torch.bfloat16] * (name not in WITHOUT_BF16)
    rates = dict.fromkeys(formats, BANDWIDTH_SHARE * chip["flops_per_second"])
    of_fp32 = (HARDWARE[name][f"dense_tflops_{kind}"] for kind in ("fp32", "tf32"))
    fp32, tf32 = (float(f"{tflops or 0}e12") for tflops in of_fp32)
    return GPU(
        rates | ({torch.float32: BANDWIDTH_SHARE * fp32} if fp32 else {}),
        BANDWIDTH_SHARE * chip["memory_bytes_per_second"],
        Links(*link_rates(name), ranks_per_node),
        host_bytes_per_second=host_rate(name),
        tf32_flops_per_second=BANDWIDTH_SHARE * tf32,
        name=name,
    )


CLOCK = {row["name"]: float(row["value"]) for row in rows_of_table("virtual.csv")}


def recorded_gpu(name: str, ranks_per_node: int = 8) -> GPU:
    """A preset's GPU with the shares of its datasheet that were recorded on an H100, or fitted to
    its steps (data/virtual.csv), and messages as NCCL sends them."""
    whole, family = preset_gpu(name, ranks_per_node), family_of(name)
    products = CLOCK["product_share"] / BANDWIDTH_SHARE
    switch = CLOCK["switch_share_blackwell" if "B" in family else "switch_share_hopper"]
    adds = whole.links.node_bytes_per_second / BANDWIDTH_SHARE * switch * (family in SWITCHES_ADD)
    own = "attention_share", "unaligned_share", "product_seconds", "kernel_seconds"
    own += "launch_seconds", "dtensor_seconds", "message_seconds", "contention"
    return replace(
        whole,
        flops_per_second={of: products * rate for of, rate in whole.flops_per_second.items()},
        tf32_flops_per_second=products * whole.tf32_flops_per_second,
        memory_bytes_per_second=CLOCK["memory_share"]
        / BANDWIDTH_SHARE
        * whole.memory_bytes_per_second,
        memory_share=CLOCK["other_share"],
        links=NCCLLinks(*link_rates(name), ranks_per_node, switch_bytes_per_second=adds),
        **{one: CLOCK[one] for one in own},
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


def show_step(step: VirtualStep, title: str = "a step in virtual time"):
    """Draw the step in a notebook."""
    from IPython.display import HTML, display

    display(HTML(virtual_step_svg(step, title)))
