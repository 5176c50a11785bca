"""Published runs with long sequences, and what the formulas say of them.

run = TORCHTITAN[3]                # 262,144 tokens on eight GPUs
run.peak_gib, run.predicted_peak_gib, run.seconds, run.predicted_seconds()
"""

from dataclasses import replace
from typing import NamedTuple

from coursekit.formulas.registry import BOOK
from coursekit.planner.layout import FUSED_LOSS, GATHERED, RankLayout, model_sizes
from coursekit.planner.speeds import SPEEDS, step_values

TOKENS_A_RANK = 32_768
FP8_FLOPS = 1_979_000_000_000_000  # of an H100's datasheet, dense
MEMORY_RATE = 0.8 * 2.4e12  # of HBM2e, as the source states it
# Products reach 0.7 of the datasheet's rate in fp8, which is assumed. One number is fitted to the
# four runs: attention, in 16 bits, takes as long as 3.8 times all scores would at that rate, so it
# does 364 TFLOP/s of all scores, or 182 of the half that no mask hides.
PRODUCT_RATE, FITTED_SCORES = 0.7, 3.8
# torchtitan@820504e benchmarks/llama3_h100_202412_torchtitan.md, Table 2


class LongRun(NamedTuple):
    """Llama 3.1 8B on eight H100s of 96 GB, compiled, products in fp8, all layers recomputed. Each
    rank has 32,768 tokens, whatever the sequence: states are sharded over all ranks, and ranks that
    share a sequence gather keys and values (torchtitan's default)."""

    ranks: int  # that share a sequence
    tokens_per_second: int  # of each GPU
    peak_gib: float

    @property
    def sequence(self) -> int:
        return self.ranks * TOKENS_A_RANK

    @property
    def seconds(self) -> float:
        return TOKENS_A_RANK / self.tokens_per_second

    @property
    def layout(self) -> RankLayout:
        return RankLayout(
            model="Llama 3.1 8B",
            sizes={**model_sizes("Llama 3 8B"), "max_sequence": 262_144},
            gpu="H100 SXM 80GB",
            gpus=8,
            sequence=self.sequence,
            zero_stage=3,
            accumulation_steps=1,
            recipe="bf16 + fp32 master",
            kernels="FSDP2, compiled",
            context_parallel=self.ranks,
            context_mix=GATHERED,
            recompute_policy=3,
        )

    @property
    def predicted_peak_gib(self) -> float:
        return BOOK.solve(["rank_peak_bytes"], self.layout.given, True)["rank_peak_bytes"] / 2**30

    def predicted_seconds(self, scores=FITTED_SCORES) -> float:
        return self.values(scores)["layout_seconds"]

    def values(self, scores=FITTED_SCORES) -> dict:
        """All that a step's seconds follow from."""
        speed = replace(SPEEDS["FSDP on H100"], utilisation=PRODUCT_RATE, score_share=scores)
        rates = dict(flops_per_second=FP8_FLOPS, memory_bytes_per_second=MEMORY_RATE)
        return step_values(self.layout, speed, **rates)


TORCHTITAN = (
    LongRun(1, 3890, 83.9),
    LongRun(2, 2540, 84.2),
    LongRun(4, 1071, 84.0),
    LongRun(8, 548, 84.5),
)


class PublishedRing(NamedTuple):
    """A ring of eight GPUs, 8,192 tokens each, forward and backward: iterations in a second, as a
    share of an eighth of those of one GPU's whole attention."""

    order: int  # of context_order
    gpu: str
    share: float


# zhuzilin/ring-flash-attention@01c8baf README.md
PUBLISHED_RINGS = (
    PublishedRing(1, "H800", 0.539),
    PublishedRing(2, "H800", 0.902),
    PublishedRing(3, "H800", 0.829),
    PublishedRing(1, "A100", 0.525),
    PublishedRing(2, "A100", 0.898),
    PublishedRing(3, "A100", 0.826),
)


class SharedOrNot(NamedTuple):
    """TFLOP/s of a GPU in NVIDIA's best layouts with whole sequences and with shared ones, fp8, 4M
    tokens in a step, a GPU for each 1,024 tokens of a sequence. None: nothing fits."""

    sequence: int
    whole: float | None
    shared: float


# NeMo 25.04, performance_long_sequence: Llama 3 8B on B200s; NeMo 24.03.01: Llama 2 7B on H100s
NEMO = {
    "Llama 3 8B": (
        SharedOrNot(8192, 1671, 1671),
        SharedOrNot(16384, 1717, 1717),
        SharedOrNot(32768, 1549, 1624),
        SharedOrNot(65536, 1481, 1600),
        SharedOrNot(131072, 1438, 1588),
        SharedOrNot(262144, 1162, 1590),
        SharedOrNot(524288, 607, 1619),
        SharedOrNot(1048576, None, 1608),
    ),
    "Llama 7B": (
        SharedOrNot(16384, 660, 660),
        SharedOrNot(32768, 595, 610),
        SharedOrNot(65536, 534, 574),
        SharedOrNot(131072, 424, 555),
        SharedOrNot(262144, 392, 549),
        SharedOrNot(524288, 104, 549),
        SharedOrNot(1048576, 26.5, 536),
    ),
}


class LongestRun(NamedTuple):
    """The longest sequence of Llama 8B that somebody trained on so many H100s of 80 GB, all of
    which share it: layers recomputed from checkpoints on the host, MLP and loss in tiles of as many
    tokens as the hidden size, states of ZeRO 3, on the host."""

    gpus: int
    sequence: int

    def layout(self, **changes) -> RankLayout:
        tokens = self.sequence // self.gpus
        return RankLayout(
            **dict(
                model="Llama 3 8B",
                sizes=model_sizes("Llama 3 8B"),
                gpu="H100 SXM 80GB",
                gpus=self.gpus,
                sequence=self.sequence,
                zero_stage=3,
                offload=1,
                accumulation_steps=1,
                kernels=FUSED_LOSS,
                context_parallel=self.gpus,
                recompute_policy=3,
                sequence_tiles=-(-tokens // 4096),
                checkpoints_on_host=1,
            )
            | changes
        )


# DeepSpeed@edaa722 docs/_tutorials/ulysses-alst-sequence-parallelism.md; lengths as it rounds them
ALST = (LongestRun(1, 500_000), LongestRun(8, 3_700_000), LongestRun(32, 15_000_000))
