"""The hooks for saved tensors that are set around a technique's own, such as checkpoint's or the
ledger's. Autograd calls the innermost hooks alone, and with hooks it does not notice a saved tensor
that was changed: without outer ones, versions are compared here."""

from torch import Tensor

from .torch_internals import hooks_of_saved_tensors, version


class OuterHooks:
    def __init__(self, where: str = ""):
        self.pack_other, self.unpack_other = hooks_of_saved_tensors() or (Tensor.detach, None)
        self.where = where

    def pack(self, tensor: Tensor) -> tuple[object, int]:
        return self.pack_other(tensor), version(tensor)

    def unpack(self, kept: tuple[object, int], compared: bool = True) -> Tensor:
        packed, before = kept
        if self.unpack_other is not None:
            return self.unpack_other(packed)
        return as_it_was_saved(packed, before, self.where) if compared else packed


def as_it_was_saved(tensor: Tensor, before: int, where: str = "") -> Tensor:
    """The tensor. Raises autograd's error if it was written since it had the version."""
    if version(tensor) != before:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace"
            f" operation: a tensor of shape {list(tensor.shape)}{where} is at version"
            f" {version(tensor)}, expected version {before}."
        )
    return tensor
