"""For `make gpu`: softmax, cross-entropy and attention by hand, by PyTorch, compiled, and as this
book's kernels, which are compiled by Triton where a GPU is; and CPU time of a call."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from statistics import median

import torch
import torch.nn.functional as F

from coursekit.formulas import model_flops_utilisation_with_scores
from coursekit.machine.capabilities import preset_of
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, Run, TrainingTask, gpu_task
from coursekit.recordings.recordings import Row
from ranklab.measure.clock import median_seconds
from ranklab.measure.timing import cpu_seconds, gpu_seconds, median_ratio, seconds_in_turns
from shardlab.gpt import GPTConfig, next_token_loss
from shardlab.kernels import attention, cross_entropy, softmax
from shardlab.kernels.losses import cut_cross_entropy


def softmax_by_hand(x):
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def loss_by_hand(logits, targets):
    return (logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]).mean()


def attention_by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


WAYS = {  # work -> way -> function
    "softmax": {
        "by hand": softmax_by_hand,
        "PyTorch": partial(torch.softmax, dim=-1),
        "tiles": softmax.softmax,
    },
    "cross_entropy": {
        "by hand": loss_by_hand,
        "PyTorch": F.cross_entropy,
        "tiles": cross_entropy.cross_entropy,
    },
    "attention": {
        "by hand": attention_by_hand,
        "PyTorch": F.scaled_dot_product_attention,
        "tiles": partial(attention.attention, causal=False),
    },
}


def possible(device: torch.device) -> list[str]:
    """The ways that run there."""
    by_triton = device.type != "cuda" or find_spec("triton")
    return ["by hand", "PyTorch", "tiles"][: 3 if by_triton else 2]


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
    ways = {way: WAYS[work][way] for way in WAYS[work] if way in possible(device)}
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


def gpt_step(task: TrainingTask, device: torch.device, way: str) -> Callable[[], None]:
    """A training step of a GPT, bf16 on a GPU, whose attention and loss are PyTorch's or tiles."""
    model = task.model(device).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens, head, loss = task.drawn(device), model.head, next_token_loss
    if way == "tiles":
        for block in model.blocks:
            block.attention.core.forward = attention.attention
        head.forward = head.norm.forward
        loss = lambda hidden, tokens: cut_cross_entropy(hidden, head.scores.weight, tokens)

    def step():
        loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def utilisation(device: torch.device, task: TrainingTask, turns: int) -> Iterator[Row]:
    """MFU with PyTorch's kernels and with this book's; where the rate of the device is not known,
    the share of a TFLOP/s."""
    gpu = preset_of(device) if device.type == "cuda" else None
    rate, over = (gpu.quantities["flops_per_second"], gpu.name) if gpu else (1e12, "1 TFLOP/s")
    config = GPTConfig(**task.sizes)
    given = dict(**config.quantities(), sequence=config.max_sequence, gpus=1, flops_per_second=rate)
    for way in possible(device)[1:]:
        seconds = median_seconds(gpt_step(task, device, way), device, turns)
        made = task.drawn().numel() / seconds
        used = model_flops_utilisation_with_scores(**given, tokens_per_second=made)
        case = dict(way=way, task=task.name, over=over, device=device.type)
        yield Row("kernels.mfu", used, "ratio", case)


def kernels(
    device: torch.device,
    turns: int = 21,
    compiles: bool = True,
    rows: int = 8192,
    columns: int = 50_257,
    heads: int = 12,
    tokens: int = 4096,
    task: TrainingTask | None = None,
) -> Iterator[Row]:
    """Seconds of each way; bytes follow from the formulas."""
    sizes = dict(rows=rows, columns=columns, heads=heads, tokens=tokens)
    for work in WAYS:
        rows_of = seconds_of_ways(device, work, turns, compiles, sizes)
        yield from attempt(f"kernels, {work}", rows_of)
    yield from attempt("kernels, MFU", utilisation(device, task or gpu_task(device), turns))


# --- what a call costs ----------------------------------------------------------------------------


class TwiceByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@torch.library.custom_op("coursekit::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_autograd(lambda ctx, grad: grad * 2)
OPERATOR = "an operator"
CALLS: dict[str, tuple[Callable, bool]] = {  # and whether a gradient will be asked for
    OPERATOR: (lambda x: x * 2, False),
    f"{OPERATOR}, with a gradient": (lambda x: x * 2, True),
    "autograd.Function": (TwiceByFunction.apply, True),
    "custom_op": (twice, False),
    "custom_op, with a gradient": (twice, True),
}


def calls(device: torch.device, turns: int = 21, many: int = 2000) -> Iterator[Row]:
    """Time of the CPU for a call on four elements, on this device, over that of an operator."""

    def repeat(work, asks):
        x = torch.ones(4, device=device, requires_grad=asks)
        return lambda: [work(x) for _ in range(many)] and None

    works = {name: repeat(*of) for name, of in CALLS.items()}
    times, case = seconds_in_turns(works, cpu_seconds, turns), dict(device=device.type)
    yield Row("kernels.call", median(times[OPERATOR]) / many, "seconds", case)
    for name in works:
        if name != OPERATOR:
            ratio = median_ratio(times, name, OPERATOR)
            yield Row("kernels.call_ratio", ratio, "ratio", dict(**case, implementation=name))


SMALL_KERNELS = dict(turns=1, compiles=False, rows=4, columns=33, heads=2, tokens=20, task=TINY)
RUNS = (Run(80, kernels, SMALL_KERNELS), Run(81, calls, dict(turns=1, many=2)))
