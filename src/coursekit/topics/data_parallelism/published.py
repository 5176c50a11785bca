"""Gains from overlap that others published, beside the most that it can bring in the model of a
step.

    for row in OVERLAPS:
        print(row.name, row.hidden_share, most_hidden_share())

Shares are of a step without overlap.
"""

from typing import NamedTuple

from coursekit.formulas import evaluate

BUCKETS = 1000  # so many that the last of them, which nothing hides, is small
FORWARD_SECONDS, BACKWARD_SECONDS = 1.0, 2.0  # a backward is two products for each of forward's


class PublishedOverlap(NamedTuple):
    """`speed_up` is how much faster steps were with overlap, 0.38 for 38 %."""

    name: str
    speed_up: float

    @property
    def hidden_share(self) -> float:
        """The share of communication that was hidden: without it, the step had been longer by the
        speed-up."""
        return self.speed_up / (1 + self.speed_up)


SOURCE = "Li et al. 2020, as quoted by others"
OVERLAPS = (
    PublishedOverlap("ResNet-50, NCCL", 0.380),
    PublishedOverlap("BERT, NCCL", 0.352),
    PublishedOverlap("ResNet-50, gloo", 0.268),
    PublishedOverlap("BERT, gloo", 0.215),
)


def hidden_share(communication_seconds: float) -> float:
    """Share of a step without overlap that passes under backward, of equal buckets that are ready
    evenly."""
    given = dict(
        rank_backward_seconds=BACKWARD_SECONDS,
        head_backward_seconds=0,
        head_bucket_seconds=0,
        equal_buckets=BUCKETS,
        equal_bucket_seconds=communication_seconds / BUCKETS,
        last_buckets_seconds=0,
    )
    found = evaluate(["exposed_seconds"], allow_unused=True, **given)
    hidden = communication_seconds - found["exposed_seconds"]
    return hidden / (FORWARD_SECONDS + BACKWARD_SECONDS + communication_seconds)


def most_hidden_share() -> float:
    """Over all speeds of the link: as long as backward, communication is hidden most."""
    return max(hidden_share(communication / 100) for communication in range(10, 1000, 10))
