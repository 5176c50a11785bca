"""The way from the ledger's bytes to what nvidia-smi prints, one named step at a time.

    with Ledger(model, optimizer, device="cuda") as ledger, CudaAccount(ledger) as account:
        step()
    account.rows()     # ("the ledger's bytes", ...), ("rounded up", ...), ("held back for later",
                       # ...), ...

PyTorch's caching allocator rounds every request up to 512 bytes, cuts blocks out of segments of 2
MiB, 20 MiB or more, leaves the end of a large block uncut if it is 1 MiB or less, and keeps freed
segments; libraries such as cuBLAS take workspaces from it; the CUDA context and its kernels lie
outside it. The rows add up to what the driver says is in use, so unexplained bytes have a row of
their own and are not hidden in another one.

The counters of the allocator peak at different points: the operation at the ledger's peak may hold
less scratch memory than a later operation. So the account reads the counters at the ledger's peak,
and each counter at its own peak.
"""

from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from ranklab.measure.ledger import Ledger
from ranklab.torch_internals import clear_cublas_workspaces
from shardlab.common.torch_internals import disable_modes

UNEXPLAINED = "not explained; below 0: counted twice"


class Reading(NamedTuple):
    """Bytes of the caching allocator, at one point or at the peak of each."""

    requested: int  # requested bytes
    # blocks in use, or freed while another stream may still use them: at least what was asked for
    active: int
    reserved: int  # segments held


class CachingAllocator:
    """PyTorch's caching allocator on one GPU, and the driver's view of that GPU."""

    def __init__(self, device: torch.device):
        if device.type != "cuda":
            raise ValueError(
                f"the model is on {device}: there is a caching allocator to account for on CUDA"
                " only."
            )
        if (backend := torch.cuda.get_allocator_backend()) != "native":
            raise ValueError(
                f"PyTorch allocates by {backend}, which does not count what it was asked for: unset"
                " PYTORCH_ALLOC_CONF."
            )
        self.device = device

    def reading(self, which: str = "current") -> Reading:
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        return Reading(
            *(
                stats[name]["all"][which]
                for name in ("requested_bytes", "active_bytes", "reserved_bytes")
            )
        )

    def start(self):
        """Reset the peaks."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def used(self) -> int:
        """Bytes in use on the whole device, by all processes."""
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def clear_workspaces(self):
        """Free the workspaces of cuBLAS and cuBLASLt, one for each thread and stream; the next
        product allocates them again."""
        clear_cublas_workspaces()

    def lend_workspaces(self):
        """Multiply once in this thread and in backward's, unseen by the ledger, so that both
        threads have workspaces, as after an earlier step."""
        unseen = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        with disable_modes(), unseen, torch.enable_grad():
            x = torch.ones(16, 16, device=self.device, requires_grad=True)
            (x @ x).sum().backward()


class CudaAccount:
    """Reads the allocator over the same span that a ledger watches. Enter it inside the ledger; one
    GPU, one process.

    The workspaces of cuBLAS are freed at the beginning, to know the other bytes, and at the end, to
    know the workspaces. In between cuBLAS has them, also in a first step.
    """

    def __init__(self, ledger: Ledger, allocator: CachingAllocator | None = None):
        device = next(ledger.model.parameters()).device
        self.ledger, self.allocator = ledger, allocator or CachingAllocator(device)
        if ledger.only != device.type:
            raise ValueError(
                "the ledger counts what lies anywhere, such as step counters on the CPU:"
                f" Ledger(..., device={device.type!r})."
            )

    def __enter__(self):
        self.allocator.clear_workspaces()
        self.before = self.allocator.reading().requested - self.ledger.bytes.total
        self.allocator.lend_workspaces()
        self.allocator.start()
        self._read()
        self.ledger.when_fuller = self._read
        return self

    def _read(self):
        self.then, self.others = self.allocator.reading(), self.before - self.ledger.met()

    def __exit__(self, *error):
        self.ledger.when_fuller = None
        used, now = self.allocator.used(), self.allocator.reading()
        self.peak = self.allocator.reading("peak")
        self.outside = used - now.reserved
        self.allocator.clear_workspaces()
        self.workspaces = now.requested - self.allocator.reading().requested

    def rows(self) -> list[tuple[str, int]]:
        """(name, bytes) at the peak, in the order of adding up."""
        return account_rows(
            self.ledger.peak.bytes.total,
            self.others,
            self.workspaces,
            self.then,
            self.peak,
            self.outside,
        )


def account_rows(
    ledger_bytes: int, others: int, workspaces: int, then: Reading, peak: Reading, outside: int
) -> list[tuple[str, int]]:
    """The rows that add up to the most bytes that the driver had to provide: peak.reserved +
    outside.

    others      requested at the ledger's peak and not in the ledger: the batch, say
    workspaces  of cuBLAS when all was over; at the ledger's peak there were as many or fewer
    then, peak  the allocator at the ledger's peak, and each of its counters at its own
    outside     what the driver says is in use, less what was reserved at that point
    """
    beyond = then.requested - ledger_bytes - others
    lent = min(workspaces, max(beyond, 0))
    return [
        ("the ledger's bytes", ledger_bytes),
        ("there before, not the model's", others),
        ("workspaces of cuBLAS", lent),
        (UNEXPLAINED, beyond - lent),
        ("inside operations, beyond the ledger's peak", peak.requested - then.requested),
        ("rounded up, ends of blocks left uncut", peak.active - peak.requested),
        ("held back for later", peak.reserved - peak.active),
        ("CUDA context, kernels, other processes", outside),
    ]
