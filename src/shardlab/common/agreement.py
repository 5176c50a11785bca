"""Before the first step all ranks must have the same model with the same values.

    agree(facts, group, error, "all ranks shard the same parameters, in the same order")
    hand_out(module.parameters(), group)
    check_replicable(module, group, options)      # what data parallelism needs

Errors are raised on all ranks or on none: a rank that waits for another one that has raised waits
forever.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .backward import BackwardListener
from .collective_wire import place
from .shards import misses_experts, replicas_of, would_mix
from .torch_internals import disable_modes, local_tensor


class CannotReplicate(ValueError):
    """Why this module cannot be trained by several ranks: one sentence, on every rank."""


COMPARED_ELEMENTS = 1 << 16  # elements of a batch that are compared
TOGETHER_BYTES = 25 << 20  # of tensors handed out in one message; a larger tensor goes alone
NO_SHAPE = "has no shape yet"  # of a lazy module, before its first call
NO_WRITES = "was made in inference mode"
OF_TORCH = "is a DTensor"
REMEDIES = {
    NO_SHAPE: "call the module once first",
    NO_WRITES: "make the module outside of torch.inference_mode()",
    OF_TORCH: "take the plain model, as it was before fully_shard or parallelize_module of PyTorch",
}


# whether what is sent compares ranks in the middle of a step, and does not belong to it
comparing: ContextVar[bool] = ContextVar("comparing", default=False)


@contextmanager
def unlogged() -> Iterator[None]:
    """A communication log leaves out what is sent within."""
    before = comparing.set(True)
    try:
        yield
    finally:
        comparing.reset(before)


def agree(
    facts: list[str],
    group: dist.ProcessGroup | None,
    error: type[Exception],
    rule: str,
    complaint: str = "",
):
    """Raise the error on every rank if the facts differ between ranks or if any rank has a
    complaint, which names a problem of that rank alone."""
    unusable = (f"{f}: {remedy}." for f in facts for text, remedy in REMEDIES.items() if text in f)
    every = [[complaint or next(unusable, ""), *facts]] * dist.get_world_size(group)
    if dist.get_backend(group) != "fake":  # its other ranks do not exist
        with disable_modes():  # what is compared is real where the tensors are fake
            dist.all_gather_object(every, every[0], group)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    for rank, (wrong, *_) in zip(ranks, every):
        if wrong:
            raise error(f"rank {rank}: {wrong}")
    for rank, theirs in zip(ranks, every):
        for here, there in zip_longest(every[0], theirs, fillvalue="nothing more"):
            if here != there:
                raise error(f"rank {ranks[0]} has {here}, rank {rank} has {there}: {rule}.")


def fact(name: str, tensor: Tensor) -> str:
    """The description of a tensor that ranks compare."""
    if is_lazy(tensor):
        return f"{name} {NO_SHAPE}"
    if tensor.is_inference():
        return f"{name} {NO_WRITES}"
    if local_tensor(tensor) is not tensor:
        return f"{name} {OF_TORCH}"
    return f"{name} {list(tensor.shape)} {tensor.dtype}" + " frozen" * (not tensor.requires_grad)


def batch_of(x: Tensor) -> str:
    """A fact about a tensor that a batch is, or that was computed from it without parameters."""
    elements = x.detach().flatten()
    some = elements[:: 1 + len(elements) // COMPARED_ELEMENTS]
    return f"a batch {list(x.shape)} {fingerprint(some)}"


def fingerprint(values: Tensor) -> str:
    return f"{crc32(str(values.tolist()).encode()):08x}"


def facts_of(module: nn.Module) -> list[str]:
    """The descriptions of its parameters and buffers, all of which rank 0 hands out."""
    tensors = *module.named_parameters(), *module.named_buffers()
    return [fact(name, tensor) for name, tensor in tensors]


def hand_out(tensors: Iterable[Tensor], group: dist.ProcessGroup | None):
    """Every rank gets the values of the group's rank 0. Small tensors of one dtype travel together.
    Tensors may have any strides: an expanded dimension is sent once."""
    piles: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        alike, tensor = replicas_of(tensor, group), tensor.detach()
        for dim, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dim] > 1:
                tensor = tensor.narrow(dim, 0, 1)
        pile = piles.setdefault((tensor.dtype, tensor.device, alike), [])
        if pile and sum(each.nbytes for each in pile) + tensor.nbytes > TOGETHER_BYTES:
            hand_out_together(pile, alike)
            pile.clear()
        pile.append(tensor)
    for (*_, alike), pile in piles.items():
        hand_out_together(pile, alike)


def hand_out_together(pile: list[Tensor], group: dist.ProcessGroup | None):
    """One message; a single tensor goes from its own memory into its own."""
    own = len(pile) == 1 and pile[0].is_contiguous()
    flat = pile[0].view(-1) if own else torch.cat([tensor.reshape(-1) for tensor in pile])
    dist.broadcast(flat.view(torch.uint8), group_src=0, group=group)  # for any dtype
    for tensor, part in zip(pile, [] if own else flat.split([tensor.numel() for tensor in pile])):
        tensor.copy_(part.view(tensor.shape))


# --- modules that several ranks train -------------------------------------------------------------


def check_replicable(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    options: dict[str, int],
    knows_experts: bool = False,
):
    """Raise CannotReplicate on all ranks or on none, ValueError on a rank outside of the group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise CannotReplicate(
            "there is no process group: start ranks, or call torch.distributed.init_process_group,"
            " first."
        )
    place(group)
    facts = [f"{name} = {value}" for name, value in options.items()]
    facts += facts_of(module)
    rule = "all ranks replicate the same module"
    complaint = complaint_of_rank(module, options) or changes_rows(module, group)
    mixes = misses_experts if knows_experts else would_mix
    complaint = complaint or mixes(module.named_parameters(), group)
    agree(facts, group, CannotReplicate, rule, complaint)


def complaint_of_rank(module: nn.Module, options: dict[str, int]) -> str:
    """The problem of this rank alone, or an empty string."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} = {value!r}: it must be a whole number of at least 1."
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return (
            f"no parameter of this {type(module).__name__} requires a gradient: there is nothing to"
            " average."
        )
    kinds = BackwardListener | nn.parallel.DistributedDataParallel
    replicated = any(isinstance(child, kinds) for child in module.modules())
    if replicated or any(getattr(p, "averaged", False) for p in module.parameters()):  # the core's
        return (
            f"this {type(module).__name__} has replicas in it already: make new ones of their"
            " .module."
        )
    devices = sorted({str(parameter.device) for parameter in module.parameters()})
    if len(devices) > 1:
        return (
            f"the parameters are on {len(devices)} devices, {' and '.join(devices)}: a replica has"
            " one."
        )
    return ""


def changes_rows(module: nn.Module, group: dist.ProcessGroup | None) -> str:
    """Which embedding writes into its own weight in forward, or an empty string."""
    for name, child in module.named_modules():
        embedding = isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.max_norm is not None
        if embedding and child.weight.requires_grad and dist.get_world_size(group) > 1:
            return (
                f"{name or 'the module'} has max_norm = {child.max_norm}: each rank would shorten"
                " the rows of its own batch, and the ranks' weights would differ: build it without."
            )
    return ""
