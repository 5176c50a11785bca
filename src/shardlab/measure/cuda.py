"""From the ledger's bytes to what nvidia-smi prints, one named step at a time.

    with Ledger(model, optimizer) as ledger, CudaAccount(ledger) as account:
        step()
    account.rows()     # ("the ledger's bytes", ...), ("rounding to 512 bytes", ...), ("held back for later", ...), ...

PyTorch's caching allocator rounds every request up to 512 bytes, cuts blocks out of segments of 2 MiB, 20 MiB or more, and keeps freed
segments; libraries such as cuBLAS take workspaces from it; the CUDA context and its kernels lie outside it. The rows add up to what
the driver says is in use, so whatever is not explained stands in a row of its own and is not hidden in another.
"""

from typing import NamedTuple

import torch

from .ledger import Ledger


class Reading(NamedTuple):
    """Bytes at one moment, as the allocator and the driver tell."""
    requested: int  # what was asked for
    allocated: int  # after rounding
    reserved: int   # segments held
    used: int       # on the whole device, by everybody

    @classmethod
    def now(cls, device, which="current"):
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        return cls(*(stats[f"{name}.all.{which}"] for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")), total - free)


class CudaAccount:
    """Reads the allocator's peaks of the same span that a ledger watches. Enter it inside the ledger; one GPU, one process."""

    def __init__(self, ledger: Ledger):
        device = next(ledger.model.parameters()).device
        if device.type != "cuda":
            raise ValueError(f"the model is on {device}: there is a caching allocator to account for on CUDA only.")
        self.ledger, self.device = ledger, device

    def __enter__(self):
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        # what is there and not the model's: the batch, workspaces of earlier products
        self.before = Reading.now(self.device).requested - self.ledger.bytes.total
        return self

    def __exit__(self, *error):
        torch.cuda.synchronize(self.device)
        self.peak = Reading.now(self.device, "peak")
        held = Reading.now(self.device).requested
        torch._C._cuda_clearCublasWorkspaces()
        self.workspaces = held - Reading.now(self.device).requested

    def rows(self) -> list[tuple[str, int]]:
        """(name, bytes) at the peak, in the order of adding up."""
        return account_rows(self.ledger.peak.bytes.total, self.before, self.workspaces, self.peak)


def account_rows(ledger_bytes: int, before: int, workspaces: int, peak: Reading) -> list[tuple[str, int]]:
    """The rows whose sum is what the driver says is in use. `before`: requested already and not in the ledger; it may hold workspaces."""
    others = max(before - workspaces, 0)
    rows = [
        ("the ledger's bytes", ledger_bytes),
        ("workspaces of cuBLAS", workspaces),
        ("there before, not the model's", others),
        ("inside operations, or not explained", peak.requested - ledger_bytes - workspaces - others),
        ("rounding to 512 bytes", peak.allocated - peak.requested),
        ("held back for later", peak.reserved - peak.allocated),
        ("CUDA context, kernels, other processes", peak.used - peak.reserved),
    ]
    return rows
