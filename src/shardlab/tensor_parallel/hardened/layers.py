"""Layers of which every rank has a part.

                      kept                     comes in         goes out
    ColumnLinear      columns of W             whole            some columns of xW
    RowLinear         rows of W                some columns     a sum over ranks, then the bias
    TokenEmbedding    rows: some tokens        token ids        a sum over ranks

They stand alone beside the core's: their parts are known to optimizers, clipping and ZeRO, cut
between pieces, once for a tied weight, and copied with their groups. A product is all they share.

We write y = xW with W [in, out], as Megatron-LM does. PyTorch writes y = xA^T, so the weight of
nn.Linear is A = W^T [out, in], and W's columns are A's rows.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.collective_wire import Group, place
from ...common.shards import as_shard, groups_of_shards, of_own_tokens
from ...common.torch_internals import ConvertedModule
from ...gpt_checks import check_range
from .pairs import leave


class Cut(NamedTuple):
    """A dim of a whole tensor, in pieces that stay whole, such as heads. Each rank has a run of
    them; where the ranks do not divide them, the first ranks have one more."""

    dim: int
    pieces: int

    def bounds(self, size: int, rank: int, n: int) -> tuple[int, int]:
        """(begin, end) of the rank's part of a dim of this size."""
        piece, each, more = size // self.pieces, *divmod(self.pieces, n)
        begin = rank * each + min(rank, more)
        return piece * begin, piece * (begin + each + (rank < more))

    def part(self, whole: Tensor, rank: int, n: int) -> Tensor:
        """A view."""
        begin, end = self.bounds(whole.shape[self.dim], rank, n)
        return whole.narrow(self.dim, begin, end - begin)


class Parts:
    """Cuts parameters for one rank of the group. A tied parameter is cut once."""

    def __init__(self, group: Group):
        self.group, self.made = group, {}

    def __call__(self, whole: nn.Parameter | None, cut: Cut) -> nn.Parameter | None:
        if whole is None:
            return None
        if whole not in self.made:
            n, me = place(self.group)
            part = cut.part(whole.detach(), me, n).clone(memory_format=torch.contiguous_format)
            self.made[whole] = as_shard(part, self.group, whole.requires_grad)
        return self.made[whole]


class AmongRanks:
    """Copies talk to the same ranks."""

    def __deepcopy__(self, memo: dict):
        memo[id(self.group)] = self.group
        twin = memo[id(self)] = type(self).__new__(type(self))
        getattr(twin, "__setstate__", vars(twin).update)(deepcopy(vars(self), memo))
        return twin


class CutModule(AmongRanks, ConvertedModule):
    """A module with parts of another one's parameters. `cuts` says how each was cut."""

    def __init__(self, group: Group, cuts: dict[str, Cut]):
        super().__init__()
        self.know_cuts(group, cuts)

    def know_cuts(self, group: Group, cuts: dict[str, Cut]):
        self.group, self.cuts, self.among_own_tokens = group, cuts, False
        self.register_load_state_dict_post_hook(know_parts)

    def every_cut(self) -> Iterator[tuple[str, Cut, Group]]:
        """(parameter, cut, group) of all cuts, the last one first."""
        yield from ((name, cut, self.group) for name, cut in self.cuts.items())

    def converted(self):
        """Register as parts the tensors by which PyTorch has replaced parts."""
        for name, part in self.named_parameters(recurse=False):
            if name in self.cuts and part not in groups_of_shards:
                groups_of_shards[part] = (self.group or dist.group.WORLD,)
            if name in self.cuts and self.among_own_tokens:
                of_own_tokens[part] = self.group or dist.group.WORLD

    def __getstate__(self) -> dict:
        if self.group is not None:
            raise TypeError(
                f"a {type(self).__name__} has a process group of its own, which is not pickled:"
                " save whole_state_dict(model), load it into the plain model, and split that."
            )
        return vars(self)

    def __setstate__(self, state: dict):
        super().__setstate__(state)
        self.converted()

    def extra_repr(self) -> str:
        shapes = [f"{name} {list(p.shape)}" for name, p in self.named_parameters(recurse=False)]
        return ", ".join([*shapes, f"1 of {dist.get_world_size(self.group)} ranks"])


def know_parts(module: CutModule, _):
    """load_state_dict(assign=True) gives the module other parameters, which are parts, too."""
    module.converted()


class CutLinear(CutModule):
    """`product` makes xW; split_backward.py puts another in its place."""

    product = staticmethod(F.linear)


class ColumnLinear(CutLinear):
    """Some columns of a linear layer. Before it, x must `enter`."""

    def __init__(self, linear: nn.Linear, cuts: dict[str, Cut], parts: Parts):
        super().__init__(parts.group, cuts)
        self.weight = parts(linear.weight, self.cuts["weight"])
        self.bias = parts(linear.bias, self.cuts["bias"])

    def forward(self, x: Tensor) -> Tensor:  # [..., in]
        return self.product(x, self.weight, self.bias)  # [..., out/t]


class RowLinear(CutLinear):
    """Some rows of a linear layer, and its whole bias, which is added once: after the sum. `join`
    makes the sum."""

    def __init__(
        self, linear: nn.Linear, cuts: dict[str, Cut], parts: Parts, join: Callable = leave
    ):
        super().__init__(parts.group, cuts)
        self.weight = parts(linear.weight, self.cuts["weight"])
        self.bias, self.join = linear.bias, join

    def forward(self, x: Tensor) -> Tensor:  # [..., in/t]
        y = self.join(self.product(x, self.weight), group=self.group)  # [..., out]
        return y if self.bias is None else y.add_(self.bias)


class TokenEmbedding(CutModule):
    """The vectors of some tokens; those of others are zeros here, and the sum has them all."""

    def __init__(
        self, embedding: nn.Embedding, cuts: dict[str, Cut], parts: Parts, join: Callable = leave
    ):
        super().__init__(parts.group, cuts)
        self.num_embeddings = embedding.num_embeddings  # of all ranks
        self.weight, self.join = parts(embedding.weight, self.cuts["weight"]), join
        n, me = place(parts.group)
        self.begin, self.end = self.cuts["weight"].bounds(self.num_embeddings, me, n)
        padding, own = embedding.padding_idx, range(self.begin, self.end)
        self.padding_idx = own.index(padding) if padding in own else None  # it gets no gradient

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S]
        check_range(tokens, self.num_embeddings)
        own = (tokens >= self.begin) & (tokens < self.end)
        rows = (tokens - self.begin).masked_fill_(~own, 0)
        x = F.embedding(rows, self.weight, self.padding_idx).masked_fill(~own.unsqueeze(-1), 0)
        return self.join(x, group=self.group)  # [B, S, H]


class OwnDropout(CutModule):
    """Dropout of a rank's part along dim. Every rank draws the mask of the whole and keeps its part
    of it, so that results do not depend on the number of ranks: those of one group need one state
    of the random generator, which moves alike on all of them. first_forward.py compares it once."""

    def __init__(self, p: float, dim: int, group: Group):
        super().__init__(group, {})
        self.p, self.dim = p, dim

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        n, me = place(self.group)
        whole = list(x.shape)
        whole[self.dim] *= n
        mask = torch.empty(whole, dtype=torch.bool, device=x.device).bernoulli_(1 - self.p)
        mask = mask.chunk(n, self.dim)[me].clone()  # so that the whole can go
        return (x * mask).mul_(1 / (1 - self.p))
