"""The cost of an operator on a GPU: its floating-point operations, and the bytes that it reads and
writes, each element once.

Counted from shapes alone, so the tensors may be fake. A view costs nothing, and nothing is launched
for it. What a kernel reads twice, or finds in a cache, is not known here.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from shardlab.common.torch_internals import (
    FUSED_ATTENTION,
    FUSED_ATTENTION_BACKWARD,
    ONLY_WRITTEN,
    argument_names,
    written_arguments,
)

from .hardware import Kernel

aten = torch.ops.aten


def operators(names: str) -> set:
    return {getattr(aten, name) for name in names.split()}


# they make or describe memory, and no kernel runs
WITHOUT_KERNEL = operators(
    "empty empty_like empty_strided new_empty new_empty_strided resize_ set_ detach alias"
    " lift_fresh is_pinned _reshape_alias _unsafe_view promote_types record_stream"
)
LIBRARIES = "aten", "fsdp"  # fully_shard has operators of its own, which copy, and one that notes
NOTES = "record_grad_output_stream"
READ_VALUES = operators("_local_scalar_dense equal allclose is_nonzero")
WRITE_ONLY = operators(" ".join(ONLY_WRITTEN) + " _foreach_copy_ _foreach_zero_")
# of their first tensor they take the shape or the dtype
READ_NOTHING = operators("new_zeros new_ones new_full zeros_like ones_like full_like")
# of their first tensor they read as many elements as they return
READ_ROWS = operators("embedding index index_select gather")
# of their scores [T, V] they read one for each target, or none
READ_ONE_A_ROW = operators("nll_loss_forward nll_loss_backward")
CONVOLUTIONS = operators("convolution _convolution convolution_backward")
ATTENTION = {*FUSED_ATTENTION, *FUSED_ATTENTION_BACKWARD}
# A kernel for lists of tensors takes so many tensors of each list, by the number of lists, and so
# many chunks: ATen/native/cuda/MultiTensorApply.cuh of torch 2.13 for CUDA 13
MOST_TENSORS, MOST_CHUNKS, CHUNK = (770, 448, 336, 252, 210), 2240, 65_536
OF_LISTS = "_foreach_", "_fused_", "_amp_foreach_"
STREAMED = operators("copy_ clone cat fill_ zero_")
TENSOR_CORE_BYTES = 16  # of which a matrix's rows are whole multiples, for tensor cores


class Cost(NamedTuple):
    flops: int
    nbytes: int
    dtype: torch.dtype | None  # in which it multiplies
    kernel: Kernel = Kernel.STREAM
    aligned: bool = True  # its matrices, for tensor cores


def cost(function, args: tuple, named: dict, result) -> Cost | None:
    """The cost of a call that has returned; None if nothing is launched."""
    packet = function.overloadpacket
    nothing_runs = packet in WITHOUT_KERNEL or packet.__name__ == NOTES or function.is_view
    if function.namespace not in LIBRARIES or nothing_runs:
        return None
    given = named_arguments(function, args, named)
    if packet.__name__ == "all_gather_copy_in":
        copied = sum(map(different_bytes, given["all_gather_inputs"]))
        return Cost(0, 2 * copied, None)
    out = tensors_in(result)
    read = list(given.values())
    if packet in WRITE_ONLY:
        out, read = tensors_in(args[0]), read[1:]
    elif packet in READ_NOTHING:
        read = []
    elif packet in READ_ROWS:
        read = [*read[1:], *out]
    elif packet in READ_ONE_A_ROW:
        read = [value for name, value in given.items() if name != "self"]
    elif "out" in given:  # fully_shard's operators return nothing
        out = tensors_in(given["out"])
        read = [value for name, value in given.items() if name != "out"]
    elif not out:  # written in place, in lists
        out = tensors_in(written_arguments(function, given))
    read = tensors_in(read)
    flops = multiplied_flops(packet, given, args, named, result)
    dtype = next((x.dtype for x in read if x.is_floating_point()), None) if flops else None
    kind, all_of_it = kind_of(function, flops), [*read, *out]
    # beside its matrices attention has a number a row, whatever its layout
    matrices = [x for x in all_of_it if kind is not Kernel.ATTENTION or x.dim() == 4]
    aligned = not flops or all(map(rows_are_aligned, matrices))
    return Cost(flops, sum(map(different_bytes, all_of_it)), dtype, kind, aligned)


def kind_of(function, flops: int) -> Kernel:
    packet = function.overloadpacket
    if flops:
        return Kernel.ATTENTION if packet in ATTENTION else Kernel.PRODUCT
    copies = packet in STREAMED or function.namespace == "fsdp"
    return Kernel.STREAM if copies or packet.__name__.startswith(OF_LISTS) else Kernel.OTHER


def rows_are_aligned(matrix: Tensor) -> bool:
    """A bias has one row, which begins where memory was given out."""
    strides = matrix.stride()[-2:] if matrix.dim() > 1 else ()
    return not max(strides, default=0) * matrix.element_size() % TENSOR_CORE_BYTES


def rounds_to_tf32(packet) -> bool:
    """Whether PyTorch is told to round the factors of products in fp32. torch 2.8 has one switch
    for all of cuDNN, and no words."""
    cudnn = torch.backends.cudnn
    of = getattr(cudnn, "conv", cudnn) if packet in CONVOLUTIONS else torch.backends.cuda.matmul
    return of.fp32_precision == "tf32" if hasattr(of, "fp32_precision") else of.allow_tf32


def launches(function, args: tuple, named: dict, result) -> int:
    """The launches of a call that has returned: one, or those of its lists of tensors."""
    if not function.overloadpacket.__name__.startswith(OF_LISTS):
        return 1
    given = named_arguments(function, args, named) | {"out": result}
    lists = [one for name, one in given.items() if name != "state_steps" and has_tensors(one)]
    most, count, tensors, chunks = MOST_TENSORS[min(len(lists), 5) - 1], 0, 0, 0
    for tensor in lists[0]:
        full, chunks = divmod(chunks + -(-tensor.numel() // CHUNK), MOST_CHUNKS)
        tensors = min(chunks, 1) if full else tensors + 1
        count += full
        if tensors == most:
            count, tensors, chunks = count + 1, 0, 0
    return max(1, count + (chunks > 0))


def has_tensors(value) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], Tensor)


def named_arguments(function, args: tuple, named: dict) -> dict:
    return dict(zip(argument_names(function), args)) | named


def multiplied_flops(packet, given: dict, args: tuple, named: dict, result) -> int:
    """Floating-point operations of matrix products. A fused kernel computes none of the scores that
    a causal mask hides."""
    if packet in ATTENTION:
        q, k, v = (given[name].shape for name in ("query", "key", "value"))
        k, v = ((*q[:2], *shape[2:]) for shape in (k, v))  # queries share keys, and not operations
        share = 0.5 if given.get("is_causal") else 1
        backward = packet in FUSED_ATTENTION_BACKWARD
        count = sdpa_backward_flop_count(q, q, k, v) if backward else sdpa_flop_count(q, k, v)
        return int(share * count)
    # the registry has addmm, and no addmm_
    not_in_place = getattr(aten, packet.__name__.removesuffix("_"), None)
    count = flop_registry.get(packet) or flop_registry.get(not_in_place)
    return count(*args, **named, out_val=result) if count else 0


def tensors_in(nested) -> list[Tensor]:
    """The tensors in tuples, lists and dictionaries: all that operators take and return."""
    if isinstance(nested, Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, (tuple, list)):
        return []
    return [tensor for one in nested for tensor in tensors_in(one)]


def different_bytes(tensor: Tensor) -> int:
    """Bytes of the different elements: an expanded tensor has each of them once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        elements *= size if stride else min(size, 1)
    return elements * tensor.element_size()
