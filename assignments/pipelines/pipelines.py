"""Assignment: pipeline schedules, and a pipeline that runs them. README.md beside this file says
what to build.

Try it with `python -m shardlab grade pipelines`.
"""

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor, nn

Schedule = list[list[str]]  # of each rank, its actions: see README.md


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards. One stage on each rank."""
    raise NotImplementedError("gpipe is a TODO")


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """The fewest forwards before the first backward that keep every rank at work, then one forward
    and one backward in turn."""
    # TODO: how many forwards does rank r do before its first pair?
    raise NotImplementedError("one_f_one_b is a TODO")


def interleaved(ranks: int, microbatches: int, stages_per_rank: int = 2) -> Schedule:
    """1F1B, where rank r has the stages r, r + ranks, r + 2 ranks, ..."""
    # TODO: in which order does a rank do its forwards? its backwards? how long is the warm-up?
    raise NotImplementedError("interleaved is a TODO")


def check_schedule(schedule: Schedule, microbatches: int):
    """Raises ValueError, which says why, for a list that cannot run."""
    raise NotImplementedError("check_schedule is a TODO")


class Pipeline(nn.Module):
    """This rank's layers of the model, and its list of the schedule."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        schedule: Schedule,
        example: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        group: dist.ProcessGroup | None = None,
    ):
        super().__init__()
        # TODO: refuse what cannot be; cut the layers; what shape does each stage hand on?
        raise NotImplementedError("Pipeline is a TODO")

    def step(self, batch: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of a batch: adds the gradients of its mean loss to .grad. Returns
        the loss of each microbatch, [m] on the rank of the last stage and [0] on the others."""
        # TODO: run the list; no two ranks may wait for each other
        raise NotImplementedError("step is a TODO")
