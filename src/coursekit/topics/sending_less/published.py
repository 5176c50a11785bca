"""How much less others say that they send, and what the formulas say.

for row in SAVINGS:
    print(row.name, row.published, row.times_less)
"""

from typing import NamedTuple

from coursekit.formulas import evaluate


class PublishedSaving(NamedTuple):
    """`published` times less bytes, `within` which the formula has to find it."""

    name: str
    published: float
    formula: str
    given: dict
    within: float
    source: str

    @property
    def times_less(self) -> float:
        return evaluate([self.formula], allow_unused=True, **self.given)[self.formula]


# any model: the ratio is the same
_RANKS = dict(model="GPT-2 124M", data_parallel=8, gradient_element_bytes=4, warm_up_share=0)
_HALF = dict(parameter_element_bytes=2, gradient_element_bytes=2, ranks_per_node=16)
ZERO_ONE_STEPS = 125_000  # with 128 tokens: DeepSpeedExamples@45b4b71 bing_bert/bert_large.json


def shares_of_zero_one_adam(
    steps: int = ZERO_ONE_STEPS, frozen: int = 12_500, doubled: int = 16, longer: int = 32_678
) -> dict[str, float]:
    """Shares of the steps in which 0/1 Adam sends 16 bits, and signs, by its configuration for
    BERT-Large. Until `frozen` steps the variance is updated from 16 bits, every step first and half
    as often after each `doubled` updates, and other steps send signs; then ranks send signs every
    step first, and half as often after each `longer` steps, every 16th step at least."""
    whole = sign = updates = 0
    for step in range(1, steps + 1):
        if step > frozen:
            sign += step % min(16, 2 ** ((step - frozen - 1) // longer)) == 0
        elif step % 2 ** (updates // doubled) == 0:
            whole, updates = whole + 1, updates + 1
        else:
            sign += 1
    return dict(warm_up_share=whole / steps, sign_share=sign / steps)


SAVINGS = (
    PublishedSaving(
        "1-bit Adam",
        5,
        "sixteenth_times_less",
        dict(warm_up_share=0.15, sign_share=0.85),
        0.02,
        "DeepSpeed@edaa722 docs/_posts/2020-09-09-onebit-adam-blog-post.md: a warm-up of 15 %",
    ),
    PublishedSaving(
        "0/1 Adam",
        26,
        "sixteenth_times_less",
        shares_of_zero_one_adam(),
        0.05,
        "DeepSpeed@edaa722 docs/_tutorials/zero-one-adam.md, onebit/zoadam.py; DeepSpeedExamples"
        "@45b4b71 bing_bert/01_adam, deepspeed_bsz4k_01adam_config_seq128_mpi_infiniband.json",
    ),
    PublishedSaving(
        "ZeRO++",
        4,
        "plus_times_less",
        dict(_HALF, data_parallel=64, parameters=10**9),
        0.025,  # scales, which the source leaves out
        "Wang et al. 2023, abstract: 0.75M of 3M; DeepSpeed@edaa722 docs/_tutorials/zeropp.md",
    ),
    PublishedSaving(
        "DiLoCo",
        500,
        "times_less",
        dict(_RANKS, gradient_compressor=9, sync_every=500),
        0.001,
        "Douillard et al. 2023, abstract",
    ),
    PublishedSaving(
        "INTELLECT-1",
        400,
        "times_less",
        dict(_RANKS, gradient_compressor=9, sync_every=100, outer_element_bytes=1),
        0.001,
        "arXiv 2412.01152, abstract, and its model card: 100 inner steps, 8 bits",
    ),
    PublishedSaving(
        "DeMo",
        85,
        "demo_times_less",
        dict(parameters=4096 * 10**5, demo_chunk=4096, demo_keep=8, demo_place_bytes=8)
        | dict(gradient_element_bytes=2),
        0.005,
        "arXiv 2411.19870v2, abstract; chunks and places by bloc97/DeMo@cab4606 demo.py; 8 of 4,096"
        " kept is assumed",
    ),
)
