"""Virtual GPUs with the numbers of the book's presets, and a picture of their step.

with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
    ...
    with gpu.step() as step:
        train()
show_step(step, "stage 3")
"""

from collections.abc import Callable

import torch
from torch import nn

from coursekit.planner.speeds import BANDWIDTH_SHARE, host_rate, link_rates
from ranklab.virtual import GPU, Links, VirtualGPU, VirtualGPUs, VirtualStep
from shardlab.gpt import GPT, GPTConfig, next_token_loss

from ..formulas import quantities
from ..formulas.presets import WITHOUT_BF16
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


# Dense FLOP/s of products in fp32, and in TF32 or 0 where a GPU has none. H100, A100 and MI300X:
# torch 2.13.0 _inductor/analysis/device_info.py, which cites the makers' datasheets, H100's TF32
# without sparsity; an H200 has an H100's chip. V100 and T4: lightning
# fabric/utilities/throughput.py, which cites NVIDIA's datasheets. Read on 2026-11-28.
FP32_AND_TF32 = {
    "V100 SXM2 32GB": (15.7e12, 0),
    "T4": (8.1e12, 0),
    "A100 SXM 40GB": (19.5e12, 156e12),
    "A100 SXM 80GB": (19.5e12, 156e12),
    "H100 SXM 80GB": (67e12, 494.5e12),
    "H200 SXM": (67e12, 494.5e12),
    "MI300X": (163.4e12, 653.7e12),
}


def preset_gpu(name: str, ranks_per_node: int = 8) -> GPU:
    """Everything runs at four fifths of its datasheet: large products, memory and links. Products
    have a rate in 16 bits, and in fp32 where FP32_AND_TF32 has one."""
    chip = quantities(gpu=name)
    formats = [torch.float16] + [torch.bfloat16] * (name not in WITHOUT_BF16)
    rates = dict.fromkeys(formats, BANDWIDTH_SHARE * chip["flops_per_second"])
    fp32, tf32 = FP32_AND_TF32.get(name, (0, 0))
    return GPU(
        rates | ({torch.float32: BANDWIDTH_SHARE * fp32} if fp32 else {}),
        BANDWIDTH_SHARE * chip["memory_bytes_per_second"],
        Links(*link_rates(name), ranks_per_node),
        host_bytes_per_second=host_rate(name),
        tf32_flops_per_second=BANDWIDTH_SHARE * tf32,
        name=name,
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
