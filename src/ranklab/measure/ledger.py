"""The byte ledger: every live byte of a training step, by category, at every point, with what
allocated it.

    with Ledger(model, optimizer) as ledger:
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
    ledger.peak            # TimelinePoint(bytes=Counts(parameters=64363520, ...), phase="backward",
                           # operation="_log_softmax_backward_data")

A dispatch mode sees every operation of PyTorch, on CPU, CUDA and fake tensors alike. Each new
storage gets one entry and a weak reference; when the storage dies, the entry goes. The purpose of a
storage becomes known after its allocation: it is a temporary until autograd keeps it for backward
(an activation), it becomes a parameter's gradient, or it belongs to the optimizer, as a state or as
a copy that the optimizer updates instead of a parameter. A gradient that is not autograd's but
assigned, `p.grad = ...`, is found by the next question about bytes, by the next step or at the end,
and earlier lines are corrected.

The ledger does not see scratch memory inside one operation; the 8 bytes of a plain number that
autograd keeps, such as the divisor of x / 3; bytes that an allocator adds by rounding up or holds
back (see cuda.py).

Peer: PyTorch's MemTracker (torch.distributed._tools.mem_tracker) counts the same bytes by module;
the ledger keeps every point with its operation, and says what is gathered.
"""

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ranklab.torch_internals import watching_resize
from shardlab.common.outer_hooks import as_it_was_saved
from shardlab.common.torch_internals import (
    TorchDispatchMode,
    active_fake_mode,
    current_backward,
    local_tensor,
    storage_key,
    tree_leaves,
    version,
)

# the origin of a model's buffer; it stays a buffer, also when batch norm keeps it for backward
BUFFER = "buffer"


class Counts(NamedTuple):
    """Bytes by category, under the names of the memory palette."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    gathered: int = 0
    temporaries: int = 0  # and buffers

    @property
    def total(self) -> int:
        return sum(self)


class TimelinePoint(NamedTuple):
    """One line of the timeline: live bytes after an operation that changed them, and where in the
    step it ran."""

    bytes: Counts
    phase: str  # forward, backward or optimizer
    operation: str
    module: str  # the innermost module that was running forward


@dataclass
class Entry:
    """One live storage. `born` is its line of the timeline."""

    category: str
    nbytes: int
    operation: str
    module: str
    born: int


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage behind a tensor: the shard's for a DTensor, the result's for a collective that
    nothing has waited for yet. None for a sparse one."""
    tensor = local_tensor(tensor)
    return tensor.untyped_storage() if tensor.layout is torch.strided else None


class Ledger(TorchDispatchMode):
    """Counts live bytes within its context. Removes all its hooks at the end, also when the step
    raises."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        device: str | torch.device | None = None,
    ):
        """`device`: count only bytes on devices of this type, such as "cuda" or "cpu"; by default
        on all devices."""
        super().__init__()
        devices = sorted({str(t.device) for t in (*model.parameters(), *model.buffers())})
        if len(devices) > 1:
            raise ValueError(
                f"the model is on {len(devices)} devices ({', '.join(devices)}): a ledger weighs"
                " one device; move the model to one of them."
            )
        self.model, self.optimizer = model, optimizer
        self.only = None if device is None else torch.device(device).type
        # called at each point with more bytes than any before it
        self.when_fuller: Callable[[], object] | None = None
        self.timeline: list[TimelinePoint] = []
        self._most = -1
        self._live: dict[int, Entry] = {}  # by the address of the storage
        self._watchers: dict[int, weakref.ref] = {}
        self._now = dict.fromkeys(Counts._fields, 0)
        self._changed = True
        self._modules = [""]
        self._stepping = 0  # optimizers that are
        self._within: ExitStack | None = None  # what to undo, within the context
        self._detaching = False  # by the ledger itself

    # --- what it tells ----------------------------------------------------------------------------

    @property
    def bytes(self) -> Counts:
        """Live bytes by category, now."""
        if self._within:
            self._find_gradients()
        return Counts(**self._now)

    @property
    def peak(self) -> TimelinePoint:
        """The first point of most live bytes."""
        if not self.timeline:
            raise RuntimeError("this ledger has seen nothing: read its peak after `with ledger`.")
        return max(self.timeline, key=lambda point: point.bytes.total)

    def by_module(self, category: str) -> dict[str, int]:
        """Live bytes of one category by the module that allocated them, now."""
        found: dict[str, int] = {}
        for entry in self._live.values():
            if entry.category == category:
                found[entry.module] = found.get(entry.module, 0) + entry.nbytes
        return found

    def met(self) -> int:
        """Live bytes that existed before this ledger and that it has seen since: a batch that
        autograd has kept."""
        return sum(
            entry.nbytes for entry in self._live.values() if not entry.operation and entry.born
        )

    def count_batch(self, *tensors: Tensor):
        """Count these tensors as activations: a batch, of which a rank that has neither the
        embedding nor the loss keeps nothing for backward."""
        self._move("activations", tensors)

    # --- one entry per storage --------------------------------------------------------------------

    def _key(self, tensor) -> int | None:
        """The key of the tensor's storage; None if its bytes do not count."""
        # a fake tensor asked for its device is an operation
        here = self.only is None or tensor.device.type == self.only
        storage = storage_of(tensor) if here else None
        return None if storage is None else storage_key(storage)

    def _record(self, category, tensor, operation="") -> Entry | None:
        """The entry of the tensor's storage, a new one if there was none."""
        if (key := self._key(tensor)) is not None and key not in self._live:
            self._enter(storage_of(tensor), category, operation)
        return self._live.get(key)

    def _enter(self, storage, category, operation):
        key, nbytes = storage_key(storage), storage.nbytes()
        self._live[key] = Entry(category, nbytes, operation, self._modules[-1], len(self.timeline))
        self._watchers[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._count(category, nbytes)

    def _move(self, category, tensors):
        """Enter the tensors' storages under a category, or move them there."""
        for tensor in tensors:
            entry = self._record(category, tensor)
            if entry is not None and entry.category != category:
                self._count(entry.category, -entry.nbytes)
                self._count(category, entry.nbytes)
                entry.category = category

    def _forget(self, key):
        del self._watchers[key]
        entry = self._live.pop(key)
        self._count(entry.category, -entry.nbytes)

    def _count(self, category, difference):
        self._now[category] += difference
        self._changed = True

    def _write_line(self, operation):
        phase = "forward" if current_backward() is None else "backward"
        phase = "optimizer" if self._stepping else phase
        counts = Counts(**self._now)
        self.timeline.append(TimelinePoint(counts, phase, operation, self._modules[-1]))
        self._changed = False
        if counts.total > self._most:
            self._most = counts.total
            if self.when_fuller is not None:
                self.when_fuller()

    def _restate(self, operation):
        """A storage has another purpose than noted: correct the line of the operation that made it,
        if that line is the last."""
        if self.timeline[-1].bytes.total == sum(self._now.values()):
            self.timeline[-1] = self.timeline[-1]._replace(bytes=Counts(**self._now))
            self._changed = False
        else:
            self._write_line(operation)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # to import it takes half a second; where it is not, there is no DTensor
        sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
        if any(issubclass(t, sharded) for t in types):
            return NotImplemented  # a DTensor unwraps itself and comes back with its shard
        result = function(*args, **(kwargs or {}))
        if self._detaching:
            return result
        if active_fake_mode() is not self._fake_mode or function.namespace == "prim":
            # DTensor finds shapes under a fake mode of its own, a fake tensor is asked for its
            # device: no memory
            return result
        operation = function.overloadpacket.__name__
        for tensor in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._record("temporaries", tensor, operation)
        if self._changed:
            self._write_line(operation)
        return result

    # --- what a storage is for --------------------------------------------------------------------

    def _keep_for_backward(self, tensor):
        if (key := self._key(tensor)) is not None:
            entry = self._live.get(key)
            if entry is None or (entry.category == "temporaries" and entry.operation != BUFFER):
                self._move("activations", [tensor])
                self._restate("save for backward")
        # Detached: an operation that saves its own output, as softmax does, would hold an output
        # that holds the operation, a circle that nobody frees.
        self._detaching = True
        try:
            return tensor.detach(), version(tensor)
        finally:
            self._detaching = False

    def _give_back(self, kept):
        """Unpack a tensor for backward. With hooks in force, autograd leaves to them the check that
        the tensor was not written since."""
        return as_it_was_saved(*kept)

    def _keep_gradient(self, parameter):
        if parameter.grad is not None:  # None: an earlier hook has sharded it
            self._move("gradients", [parameter.grad])
            self._restate("accumulate gradient")

    def _before_step(self, optimizer, *_):
        self._stepping += 1  # a sharded optimizer has one inside
        self._find_gradients(optimizer)

    def _find_gradients(self, optimizer=None):
        """Find all gradients, with those that were assigned and called no hook."""
        held = list(self.model.parameters())
        for one in filter(None, (self.optimizer, optimizer)):
            held += [p for group in one.param_groups for p in group["params"]]
        self._found("gradients", [p.grad for p in held if p.grad is not None])

    def _after_step(self, optimizer, *_):
        self._keep_states(optimizer)
        if self._stepping == 1:  # an optimizer inside may have copies for the step alone
            self._keep_copies(optimizer)
        self._stepping -= 1

    def _keep_states(self, optimizer):
        """The optimizer made its new tensors during the step."""
        held = tree_leaves([*optimizer.state.values()])
        self._found("optimizer", [one for one in held if isinstance(one, Tensor)])

    def _keep_copies(self, optimizer):
        """Whatever an optimizer updates and the model does not have is a copy of a parameter, as an
        fp32 master weight is: a state as well."""
        own = {self._key(p) for p in self.model.parameters()}
        updated = [p for group in optimizer.param_groups for p in group["params"]]
        copies = [p for p in updated if self._key(p) not in own and self._has_no_purpose(p)]
        self._found("optimizer", copies)

    def _has_no_purpose(self, tensor) -> bool:
        entry = self._live.get(self._key(tensor))
        return entry is None or entry.category == "temporaries"

    def _found(self, category, held):
        """These storages have been of the category since they were made. Correct the lines since
        then."""
        born = [0] * (len(self.timeline) + 1)
        for key in set(map(self._key, held)).intersection(self._live):
            if self._live[key].category == "temporaries":
                born[self._live[key].born] += self._live[key].nbytes
        self._move(category, held)
        if not any(born):
            return
        since = 0
        for line, point in enumerate(self.timeline):
            since += born[line]
            if since:
                counts = point.bytes._asdict()
                counts[category] += since
                counts["temporaries"] -= since
                self.timeline[line] = point._replace(bytes=Counts(**counts))

    # --- entering and leaving ---------------------------------------------------------------------

    def __enter__(self):
        self._fake_mode = active_fake_mode()
        with ExitStack() as within:  # undone where it raises
            self._watch(within)
            super().__enter__()
            self._within = within.pop_all()
        return self

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._find_gradients()
            self._within.close()
            self._within, self._stepping = None, 0
            self._modules[1:] = []

    def _watch(self, within: ExitStack):
        def until_then(hook):
            within.callback(hook.remove)

        for name, module in self.model.named_modules():
            enter = lambda *_, name=name: self._modules.append(name)
            until_then(module.register_forward_pre_hook(enter))
            until_then(module.register_forward_hook(self._leave_module, always_call=True))
        for parameter in (p for p in self.model.parameters() if p.requires_grad):
            until_then(parameter.register_post_accumulate_grad_hook(self._keep_gradient))
        self._move("parameters", self.model.parameters())
        self._move("gradients", (p.grad for p in self.model.parameters() if p.grad is not None))
        for buffer in self.model.buffers():
            self._record("temporaries", buffer, BUFFER)
        if self.optimizer is not None:
            self._keep_states(self.optimizer)
            self._keep_copies(self.optimizer)
        until_then(register_optimizer_step_pre_hook(self._before_step))
        until_then(register_optimizer_step_post_hook(self._after_step))
        within.enter_context(saved_tensors_hooks(self._keep_for_backward, self._give_back))
        within.enter_context(watching_resize(self._resized))
        self._write_line("")

    def _leave_module(self, *_):
        self._modules.pop()

    def _resized(self, storage):
        """FSDP and zero/stage3.py free and refill the storages of gathered parameters. Nothing else
        resizes a storage, so a resized storage is a gathered parameter."""
        if self.only not in (None, storage.device.type):
            return
        entry = self._live.get(storage_key(storage))
        if entry is None:
            return self._enter(storage, "gathered", "resize_")
        self._count(entry.category, -entry.nbytes)
        entry.category, entry.nbytes = "gathered", storage.nbytes()
        self._count(entry.category, entry.nbytes)
