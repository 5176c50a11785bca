"""For `make gpu`: softmax, cross-entropy and attention by hand, by PyTorch, compiled, and as this
book's kernels, which are compiled by Triton where a GPU is."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median

import torch
import torch.nn.functional as F

from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import Run
from coursekit.recordings.recordings import Row
from ranklab.measure.timing import cpu_seconds, gpu_seconds, seconds_in_turns
from shardlab.kernels import attention, cross_entropy, softmax


def softmax_by_hand(x):
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def loss_by_hand(logits, targets):
    return (logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]).mean()


def attention_by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def in_tiles(q, k, v):
    return attention.attention(q, k, v, causal=False)


WAYS = {  # work -> way -> function
    "softmax": {
        "by hand": softmax_by_hand,
        "PyTorch": lambda x: torch.softmax(x, -1),
        "tiles": softmax.softmax,
    },
    "cross_entropy": {
        "by hand": loss_by_hand,
        "PyTorch": F.cross_entropy,
        "tiles": cross_entropy.cross_entropy,
    },
    "attention": {"by hand": attention_by_hand, "PyTorch": fused_attention, "tiles": in_tiles},
}


def tensors_of_work(work: str, device: torch.device, sizes: dict[str, int]) -> tuple:
    """Tensors of fp32 on a CPU, of bf16 on a GPU."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    random = lambda *shape: torch.randn(*shape, device=device, dtype=kind)
    if work == "attention":
        return tuple(random(1, sizes["heads"], sizes["tokens"], 64) for _ in range(3))
    x = random(sizes["rows"], sizes["columns"])
    targets = torch.randint(sizes["columns"], (sizes["rows"],), device=device)
    return (x,) if work == "softmax" else (x, targets)


def seconds_of_ways(
    device: torch.device, work: str, turns: int, compiles: bool, sizes: dict[str, int]
) -> Iterator[Row]:
    given = tensors_of_work(work, device, sizes)
    ways = dict(WAYS[work])
    if device.type == "cuda" and not find_spec("triton"):
        del ways["tiles"]
    if compiles:
        ways["compiled"] = torch.compile(ways["by hand"], dynamic=False)
    works: dict[str, Callable] = {
        name: lambda function=function: function(*given) for name, function in ways.items()
    }
    clock = gpu_seconds if device.type == "cuda" else cpu_seconds
    with torch.no_grad():
        times = seconds_in_turns(works, clock, turns)
    for way, seconds in times.items():
        case = dict(way=way, device=device.type, **sizes)
        yield Row(f"kernels.{work}", median(seconds), "seconds", case)


def kernels(
    device: torch.device,
    turns: int = 21,
    compiles: bool = True,
    rows: int = 8192,
    columns: int = 50_257,
    heads: int = 12,
    tokens: int = 4096,
) -> Iterator[Row]:
    """Seconds of each way; bytes follow from the formulas."""
    sizes = dict(rows=rows, columns=columns, heads=heads, tokens=tokens)
    for work in WAYS:
        rows_of = seconds_of_ways(device, work, turns, compiles, sizes)
        yield from attempt(f"kernels, {work}", rows_of)


SMALL_KERNELS = dict(turns=1, compiles=False, rows=4, columns=33, heads=2, tokens=20)
RUNS = (Run(80, kernels, SMALL_KERNELS),)
