"""A weight on several ranks of a pipeline, such as a tied embedding and head, begins as its first
rank's. After the last backward each of these ranks adds up all their gradients, in the same order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..partition import PipelinePlan


class TiedWeights:
    """The parameters that stages of several ranks have, among the layers of the whole model."""

    def __init__(
        self, layers: Sequence[nn.Module], plan: PipelinePlan, group: dist.ProcessGroup | None
    ):
        self.rank, self.group = dist.get_rank(group), group
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        holders: dict[nn.Parameter, set[int]] = {}
        for stage, (first, end) in enumerate(plan.cuts):
            for layer in layers[first:end]:
                for parameter in layer.parameters():
                    holders.setdefault(parameter, set()).add(plan.home[stage])
        tied = [
            (parameter, sorted(ranks)) for parameter, ranks in holders.items() if len(ranks) > 1
        ]
        self.places = [ranks for _, ranks in tied]
        self.shared = [(parameter, ranks) for parameter, ranks in tied if self.rank in ranks]

    def exchange(self, tensor: Tensor, ranks: list[int]) -> list[Tensor]:
        """The tensors of these ranks, of which this is one, in the order of the ranks."""
        tensor = tensor.contiguous()
        found = {rank: torch.empty_like(tensor) for rank in ranks}
        found[self.rank] = tensor
        moves = []
        for rank in ranks:
            if rank != self.rank:
                peer = self.ranks[rank]
                moves.append(dist.P2POp(dist.irecv, found[rank], peer, self.group))
                moves.append(dist.P2POp(dist.isend, tensor, peer, self.group))
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        return list(found.values())

    @torch.no_grad()
    def hand_out(self):
        for parameter, ranks in self.shared:
            parameter.copy_(self.exchange(parameter.detach(), ranks)[0])

    @contextmanager
    def added_up(self) -> Iterator[None]:
        """The gradients that come within are added up over ranks. Those from before, which are sums
        already, are set aside meanwhile."""
        tied = [(p, p.grad, ranks) for p, ranks in self.shared if p.requires_grad]
        if not torch.is_grad_enabled():
            tied = []
        for parameter, *_ in tied:
            parameter.grad = None
        try:
            yield
        except BaseException:  # nothing is added up, and no sum is lost
            for parameter, before, _ in tied:
                parameter.grad = before
            raise
        with torch.no_grad():
            for parameter, before, ranks in tied:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                total = sum(self.exchange(own, ranks))
                parameter.grad = total if before is None else before.add_(total)
