"""Virtual GPUs with the numbers of the book's presets, and a picture of their step.

with virtual_gpus(8, gpu="H100 SXM 80GB") as gpu:
    ...
    with gpu.step() as step:
        train()
show_step(step, "stage 3")
"""

import torch

from shardlab.virtual import GPU, Links, VirtualGPU, VirtualGPUs, VirtualStep

from ..formulas import quantities
from ..formulas.presets import WITHOUT_BF16
from ..formulas.speeds import BANDWIDTH_SHARE, host_rate, link_rates
from ..show.svg.virtual import virtual_step_svg


def virtual_gpus(count: int, gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPUs:
    """Rank 0 of so many of a preset's GPUs."""
    return VirtualGPUs(count, preset_gpu(gpu, ranks_per_node))


def virtual_gpu(gpu: str = "H100 SXM 80GB", ranks_per_node: int = 8) -> VirtualGPU:
    """A preset's GPU for a rank among real ones."""
    return VirtualGPU(preset_gpu(gpu, ranks_per_node))


def preset_gpu(name: str, ranks_per_node: int = 8) -> GPU:
    """Everything runs at four fifths of its datasheet: large products in 16 bits, memory and links.
    Products in other formats have no rate."""
    chip = quantities(gpu=name)
    formats = [torch.float16] + [torch.bfloat16] * (name not in WITHOUT_BF16)
    return GPU(
        dict.fromkeys(formats, BANDWIDTH_SHARE * chip["flops_per_second"]),
        BANDWIDTH_SHARE * chip["memory_bytes_per_second"],
        Links(*link_rates(name), ranks_per_node),
        host_bytes_per_second=host_rate(name),
        name=name,
    )


def show_step(step: VirtualStep, title: str = "a step in virtual time"):
    """Draw the step in a notebook."""
    from IPython.display import HTML, display

    display(HTML(virtual_step_svg(step, title)))
