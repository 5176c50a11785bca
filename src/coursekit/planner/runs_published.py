"""Three published runs and what the formulas say of them: the seconds of a step in parts, and the
bytes of the fullest rank. `tests/which_layout/test_chapter.py` compares them with their sources."""

from dataclasses import dataclass, field
from functools import cached_property

from coursekit.formulas.registry import BOOK
from coursekit.planner.fits import RankLayout, model_sizes
from coursekit.planner.speeds import SPEEDS, parts_of, step_values

PUBLISHED_SIZES = "layers hidden heads key_value_heads feed_forward vocabulary max_sequence".split()
PUBLISHED_SIZES += "learned_positions biases gated_mlp tied_head".split()
GPT_175B = dict(zip(PUBLISHED_SIZES, (96, 12288, 96, 96, 49152, 51200, 2048, 1, 1, 0, 1)))
MPT_7B = dict(zip(PUBLISHED_SIZES, (32, 4096, 32, 32, 16384, 50368, 2048, 0, 0, 0, 1)))
LOCAL = "Megatron-LM without Transformer Engine"


@dataclass(frozen=True)
class PublishedRun:
    """A layout, the class of runs whose speed it has, and the published seconds of its step."""

    label: str
    layout: RankLayout
    speed: str
    seconds: float
    more: dict = field(default_factory=dict)  # quantities that a layout does not have

    @cached_property
    def step(self) -> dict:
        return step_values(self.layout, SPEEDS[self.speed], **self.more)

    @property
    def parts(self) -> dict:
        return parts_of(self.step)

    @property
    def predicted_seconds(self) -> float:
        return self.step["layout_seconds"]

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.seconds - 1


def _published(flops_per_second, gpus, tokens, **sizes):
    """Seconds of a step of so many tokens, at the published FLOP/s of each GPU."""
    names = ("matmul_flops_per_token",)
    flops = BOOK.solve(names, {**sizes, "causal_half": 0}, allow_unused=True)[names[0]]
    return flops * tokens / (gpus * flops_per_second)


_405B = model_sizes("Llama 3 405B")
PUBLISHED_RUNS = {
    "l405": PublishedRun(
        "Llama 3 405B, 8,192 H100s",
        RankLayout(
            model="Llama 3 405B",
            sizes={**_405B, "layers": 128},  # 126, and the two chunks of the embedding and the head
            gpu="H100 SXM 80GB",
            gpus=8192,
            sequence=8192,
            zero_stage=1,
            accumulation_steps=32,
            tensor_parallel=8,
            pipeline_parallel=16,
            stages_per_rank=8,
        ),
        "Megatron-LM on H100",
        _published(430e12, 8192, 64 * 32 * 8192, **_405B, sequence=8192),
    ),
    "k175": PublishedRun(
        "A GPT of 175B, 64 A100s",
        RankLayout(
            model="GPT 175B",
            sizes=GPT_175B,
            gpu="A100 SXM 80GB",
            gpus=64,
            sequence=2048,
            zero_stage=0,
            accumulation_steps=64,
            tensor_parallel=8,
            pipeline_parallel=8,
            stages_per_rank=3,
            recompute_policy=1,
            recipe="fp16 + fp32 gradients",
            kernels=LOCAL,
        ),
        "Megatron-LM on A100",
        13.75,
        dict(fused_attention=0, dropout=0.1),
    ),
    "mpt7": PublishedRun(
        "MPT-7B, 8 H100s",
        RankLayout(
            model="MPT-7B",
            sizes=MPT_7B,
            gpu="H100 SXM 80GB",
            gpus=8,
            sequence=2048,
            zero_stage=3,
            microbatch=6,
            accumulation_steps=1,
            recipe="bf16 + fp32 master",
            kernels=LOCAL,
        ),
        "FSDP on H100",
        1.1546,
    ),
}

SECONDS_BY_LOOK = {  # look of palette.TIMELINE -> (label, parts of the step)
    "forward": ("work", ("products", "moving", "head", "update", "launching")),
    "weight-gradient": ("recomputed", ("recomputing",)),
    "communication": ("messages", ("messages", "passing", "exposed", "experts", "exchange")),
    "idle": ("bubble", ("bubble",)),
}
