"""The backend "nccl" over gloo, with NCCL's rules. What hangs or fails on NCCL is an error here:

- A communicator is a queue: what a rank puts into it runs one after the other, in a thread of its
  own, some random time later. The host goes on; wait() is where its next kernels would wait.
- A send or recv alone takes a communicator of its two ranks, for both directions; collectives and
  batches of messages take that of the whole group.
- A communicator is made at its first use, and the host waits there for all of its ranks. Two ranks
  that wait for each other in different communicators never go on: a RuntimeError after
  HANGS_AFTER_SECONDS.
- Tags are ignored: messages of a pair match in the order of their calls.
- A message in a batch has no work of its own; the batch has one.
- Tensors are contiguous, on the rank's own GPU, and of a dtype that NCCL knows. Each rank of a
  group has a GPU of its own.
- A future is complete as soon as the call is in the queue.

`log` has this rank's calls in order, for tests that compare ranks.
"""

import gc
import os
import queue
import random
import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import TensorWeakRef

from . import cuda

HANGS_AFTER_SECONDS = float(os.environ.get("PRETENDED_NCCL_SECONDS", 20))
MOST_DELAY_SECONDS = 0.002
SEED = os.environ.get("PRETENDED_GPU_SEED", "0")  # of the delays

COLLECTIVES = "collectives"  # the communicator of the whole group

c10d = dist.distributed_c10d
options = torch._C._distributed_c10d

UNKNOWN_TO_NCCL = (torch.int16, torch.complex32)


class Hangs(RuntimeError):
    """NCCL would wait here forever."""


class Entry(NamedTuple):
    """One call of this rank. Ranks are those of the group."""

    group: str
    communicator: str
    rank: int
    operation: str
    peer: int | None
    elements: int
    dtype: str


log: list[Entry] = []
backends: list["ProcessGroupNCCL"] = []  # PyTorch keeps only the C++ half of each


def end_groups():
    """Ends all groups of this rank. A thread of each wakes a hundred times a second."""
    dist.destroy_process_group()
    backends.clear()
    gc.collect()  # models that know their group, and their hooks know them


# --- communicators --------------------------------------------------------------------------------


class Communicator:
    """The queue of one communicator, and the thread that empties it."""

    def __init__(self, name: str, rank: int):
        self.name, self.queue = name, queue.SimpleQueue()
        self.delays = random.Random(f"{SEED} {rank} {name}")
        threading.Thread(target=self.run, daemon=True, name=f"pretended NCCL {name}").start()

    def enqueue(self, what: str, job) -> "Work":
        work = Work(f"{what} on {self.name}")
        self.queue.put((work, job))
        return work

    def run(self):
        while True:
            work, job = self.queue.get()
            time.sleep(self.delays.random() * MOST_DELAY_SECONDS)
            try:
                job()
            except BaseException as error:
                work.error = error
            del job  # and its tensors, before anybody weighs what is alive
            work.done.set()
            del work  # while this thread waits for the next


class Work(dist.Work):
    """A call in the queue of a communicator."""

    alive: set["Work"] = set()  # for good: PyTorch keeps only the C++ half, and may wait twice

    def __init__(self, what: str):
        super().__init__()
        self.what, self.done, self.error = what, threading.Event(), None
        self.tensors: list[torch.Tensor] = []
        self.alive.add(self)

    def holds(self, tensors: list[torch.Tensor]):
        self.tensors, self.known = tensors, [TensorWeakRef(tensor) for tensor in tensors]

    def wait(self, *timeout) -> bool:
        if not self.done.wait(HANGS_AFTER_SECONDS):
            raise Hangs(f"NCCL would hang: {self.what} does not end")
        if self.error:
            raise self.error
        self.tensors = []  # as NCCL's work lets go of what it holds for the allocator
        return True

    def is_completed(self) -> bool:
        return self.done.is_set()

    def get_future(self):
        # DDP may ask after a log has waited: the tensors are then its own
        return EnqueuedFuture(self, self.tensors or [tensor() for tensor in self.known])


class EnqueuedFuture(torch.futures.Future):
    """NCCL's future is complete when the call is in the queue, and later kernels wait for the call
    itself. Callbacks learn about the first moment. C++ (DDP's reducer) and `then` get the second:
    what they read must have arrived, as kernels here wait for nothing."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, work, tensors):
        super().__init__()
        threading.Thread(target=self.follow, args=(work, tensors), daemon=True).start()

    def follow(self, work, tensors):
        try:
            work.wait()
            self.set_result(tensors)
        except RuntimeError as error:
            self.set_exception(error)

    def done(self) -> bool:
        return True

    def add_done_callback(self, callback):
        callback(self)


class Coalesced(dist.Work):
    """The work of a message in a batch: NCCL has none, so whoever looks at it fails."""

    alive: list["Coalesced"] = []

    def __init__(self):
        super().__init__()
        self.alive.append(self)

    def missing(self, *_):
        raise AttributeError(
            "'NoneType' object has no such attribute: NCCL gives no work in a batch"
        )

    wait = is_completed = get_future = missing


class ProcessGroupNCCL(dist.ProcessGroupGloo):
    """One rank of a group. Its messages go by gloo."""

    class Options:
        is_high_priority_stream = False

        def __init__(self, *_, **given):
            vars(self).update(given)

    def __init__(self, store, rank: int, size: int, options=None):
        super().__init__(store, rank, size, timedelta(seconds=300))
        self.store, self.number, self.world = store, rank, size
        self.communicators: dict[str, Communicator] = {}
        self.device, self.batch = None, None
        self.title = getattr(options, "group_name", "")
        backends.append(self)

    @property
    def supports_coalescing(self) -> bool:
        return True

    def communicator(self, name: str, ranks, device: torch.device) -> Communicator:
        """The communicator of these ranks, made at its first use as by ncclCommInitRank: the host
        waits until all of them have come."""
        self.device = self.device or device
        if device != self.device:
            raise RuntimeError(
                f"rank {self.number} has used {self.device} in this group, and comes with {device}"
            )
        if name not in self.communicators:
            self.meet(name, ranks, device)
            self.communicators[name] = Communicator(f"{self.title}/{name}", self.number)
        return self.communicators[name]

    def meet(self, name: str, ranks, device: torch.device):
        places = {rank: f"pretended/{name}/{rank}" for rank in ranks}
        self.store.set(places[self.number], str(device))
        try:
            self.store.wait(list(places.values()), timedelta(seconds=HANGS_AFTER_SECONDS))
        except RuntimeError:
            absent = [rank for rank, place in places.items() if not self.store.check([place])]
            raise Hangs(
                f"NCCL would hang: rank {self.number} makes the communicator {name} of group"
                f" {self.title!r}, and ranks {absent} do not come"
            ) from None
        devices = [self.store.get(place) for place in places.values()]
        if len({*devices}) < len(devices):
            raise RuntimeError(f"Duplicate GPU detected: ranks {[*ranks]} are on {devices}")

    def enqueue(self, call: "Call", job, peer: int | None = None):
        """Put a job into the communicator that NCCL would take. In a batch: keep it for the end."""
        for tensor in call.tensors:
            check_tensor(call.operation, tensor)
        device = call.tensors[0].device
        if self.batch is not None:
            self.batch.append((call, job, peer))
            return Coalesced()
        alone = peer is not None
        ranks = sorted({self.number, peer}) if alone else range(self.world)
        name = "{}:{}".format(*ranks, *ranks) if alone else COLLECTIVES
        communicator = self.communicator(name, ranks, device)
        self.note(communicator, call, peer)
        work = communicator.enqueue(call.operation, job)
        work.holds(call.tensors)
        return work

    def note(self, communicator: Communicator, call: "Call", peer: int | None):
        elements = sum(tensor.numel() for tensor in call.tensors)
        dtype = str(call.tensors[0].dtype).removeprefix("torch.")
        name = communicator.name.removeprefix(f"{self.title}/")
        log.append(Entry(self.title, name, self.number, call.operation, peer, elements, dtype))

    def start_coalescing(self):
        self.batch = []

    def end_coalescing(self):
        batch, self.batch = self.batch, None
        if not batch:
            return None
        device = batch[0][0].tensors[0].device
        communicator = self.communicator(COLLECTIVES, range(self.world), device)
        for call, _, peer in batch:
            self.note(communicator, call, peer)

        def together():  # gloo's messages wait for their peers: all must be under way first
            for ended in [job(wait=False) for _, job, _ in batch]:
                ended and ended.wait()

        work = communicator.enqueue("a batch", together)
        work.holds([tensor for call, *_ in batch for tensor in call.tensors])
        return work

    def _group_start(self):
        pass

    _group_end = _group_start


def check_tensor(operation: str, tensor: torch.Tensor):
    if not tensor.is_cuda or tensor.layout != torch.strided:
        raise RuntimeError(f"{operation}: Tensors must be CUDA and dense")
    if not tensor.is_contiguous():
        raise RuntimeError(f"{operation}: Tensors must be contiguous")
    if tensor.dtype in UNKNOWN_TO_NCCL:
        raise RuntimeError(f"{operation}: NCCL has no type for {tensor.dtype}")


# --- how gloo does what NCCL is asked for ---------------------------------------------------------
# The arguments have the names of c10d's operators; `host` has their aliases in the host's memory.


def with_options(kind: str, **values):
    made = getattr(options, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def reduction_of(reduce_op) -> dist.ReduceOp.RedOpType:
    return (
        dist.ReduceOp.RedOpType(reduce_op.op()) if hasattr(reduce_op, "op") else dist.ReduceOp.SUM
    )


def reduce_by(tensors, host, size: int, reduce):
    """Calls reduce(op). gloo has no average: a sum of shares, as NCCL makes it."""
    asked = reduction_of(host.reduce_op)
    average = asked == dist.ReduceOp.AVG
    if average:
        for tensor in tensors:
            tensor.mul_(1 / size)
    reduce(dist.ReduceOp.SUM if average else asked)


def all_reduce(gloo, host):
    def reduce(op, tensor):
        gloo.allreduce([tensor], with_options("AllreduceOptions", reduceOp=op)).wait()

    for tensor in host.tensors:
        reduce_by([tensor], host, gloo.size(), partial(reduce, tensor=tensor))


def reduce(gloo, host):
    at_root = gloo.rank() == host.root_rank
    kept = host.tensors if at_root else [tensor.clone() for tensor in host.tensors]
    root = dict(rootRank=host.root_rank, rootTensor=host.root_tensor)
    reduce_by(
        kept,
        host,
        gloo.size(),
        lambda op: gloo.reduce(kept, with_options("ReduceOptions", reduceOp=op, **root)).wait(),
    )


def broadcast(gloo, host):
    root = dict(rootRank=host.root_rank, rootTensor=host.root_tensor)
    gloo.broadcast(host.tensors, with_options("BroadcastOptions", **root)).wait()


def all_gather_flat(gloo, full, part):
    # NCCL gathers in place, where the part is a piece of the whole
    parts = [list(full.view(-1).chunk(gloo.size()))]
    gloo.allgather(parts, [part.view(-1).clone()], with_options("AllgatherOptions")).wait()


def reduce_scatter_flat(gloo, host, part, full):
    total = full.reshape(-1).clone()

    def reduce(op):
        gloo.allreduce([total], with_options("AllreduceOptions", reduceOp=op)).wait()

    reduce_by([total], host, gloo.size(), reduce)
    part.view(-1).copy_(total.view(gloo.size(), -1)[gloo.rank()])


def reduce_scatter(gloo, host):
    for part, parts in zip(host.output_tensors, host.input_tensors):
        reduce_scatter_flat(gloo, host, part, torch.cat([tensor.reshape(-1) for tensor in parts]))


def all_gather(gloo, host):
    inputs = [tensor.clone() for tensor in host.input_tensors]
    gloo.allgather(host.output_tensors, inputs, with_options("AllgatherOptions")).wait()


def gather(gloo, host):
    root = with_options("GatherOptions", rootRank=host.root_rank)
    gloo.gather(host.output_tensors, host.input_tensors, root).wait()


def scatter(gloo, host):
    root = with_options("ScatterOptions", rootRank=host.root_rank)
    gloo.scatter(host.output_tensors, host.input_tensors, root).wait()


def all_to_all_flat(gloo, host):
    sizes = host.output_split_sizes, host.input_split_sizes
    gloo.alltoall_base(host.output, host.input, *sizes, options.AllToAllOptions()).wait()


def each(one, outputs: str, inputs: str):
    """A coalesced collective: one after the other."""

    def run(gloo, host):
        for output, input in zip(getattr(host, outputs), getattr(host, inputs)):
            one(gloo, host, output, input)

    return run


def gather_one(gloo, host, full, part):
    all_gather_flat(gloo, full, part)


def barrier(gloo, host):
    gloo.barrier(options.BarrierOptions()).wait()


# name of the operator: (how gloo does it, the arguments that it returns before the work)
OPERATORS = {
    "allreduce_": (all_reduce, ["tensors"]),
    "allreduce_coalesced_": (all_reduce, []),
    "reduce_": (reduce, []),
    "broadcast_": (broadcast, ["tensors"]),
    "allgather_": (all_gather, ["output_tensors"]),
    "_allgather_base_": (
        lambda gloo, host: all_gather_flat(gloo, host.output_tensor, host.input_tensor),
        ["output_tensor"],
    ),
    "allgather_into_tensor_coalesced_": (each(gather_one, "outputs", "inputs"), []),
    "reduce_scatter_": (reduce_scatter, ["output_tensors"]),
    "_reduce_scatter_base_": (
        lambda gloo, host: reduce_scatter_flat(gloo, host, host.output_tensor, host.input_tensor),
        ["output_tensor"],
    ),
    "reduce_scatter_tensor_coalesced_": (each(reduce_scatter_flat, "outputs", "inputs"), []),
    "gather_": (gather, []),
    "scatter_": (scatter, ["output_tensors"]),
    "alltoall_base_": (all_to_all_flat, []),
    "barrier": (barrier, []),
}
MESSAGES = {"send": "dst", "recv_": "src"}  # and the argument that names the peer
NOT_OF_NCCL = (
    "recv_any_source_",
    "monitored_barrier_",
    "alltoall_",  # NCCL has it, gloo has not
    "allgather_coalesced_",
)


# --- c10d's operators on CUDA tensors -------------------------------------------------------------


class Call:
    """One call of an operator of c10d, with its arguments by name."""

    def __init__(self, operation: str, arguments: list[str], args, named):
        self.operation = operation
        self.given = {**dict(zip(arguments, args)), **named}
        self.group = dist.ProcessGroup.unbox(self.given["process_group"])
        self.backend = self.group._get_backend(torch.device("cuda"))
        leaves = tree_leaves([value for value in self.given.values()])
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.asynchronous = self.given.get("async_op", True)

    def host(self) -> SimpleNamespace:
        """The arguments, with tensors in the host's memory."""
        on_host = torch.ops.pretended.on_host
        is_here = lambda leaf: isinstance(leaf, torch.Tensor) and leaf.is_cuda
        return SimpleNamespace(
            **tree_map(lambda leaf: on_host(leaf) if is_here(leaf) else leaf, self.given)
        )


def collective(name: str, run, returned: list[str]):
    def kernel(*args, **named):
        call = Call(name, arguments_of(name), args, named)
        gloo, host = call.backend, call.host()

        def job(wait=True):
            run(gloo, host)

        if isinstance(gloo, ProcessGroupNCCL):
            work = gloo.enqueue(call, job)
        else:
            work = done_by_gloo(call, job)
        if name == "barrier":
            cuda.note_wait("barrier")
        if not call.asynchronous and not isinstance(work, Coalesced):
            work.wait()
        first = [call.given[argument] for argument in returned]
        return (*first, work.boxed()) if first else work.boxed()

    return kernel


def done_by_gloo(call: "Call", job) -> Work:
    """A collective of CUDA tensors by a group of gloo, which takes them through the host."""
    work = Work(f"{call.operation} by gloo")
    job()
    work.holds(call.tensors)
    work.done.set()
    return work


def message(name: str, peer_argument: str):
    def kernel(*args, **named):
        call = Call(name, arguments_of(name), args, named)
        gloo, peer = call.backend, call.given[peer_argument]
        if not isinstance(gloo, ProcessGroupNCCL):
            raise RuntimeError(f"{name}: gloo has no messages of CUDA tensors")
        tensors, tag = call.host().tensors, tag_of_pair(gloo, peer)

        def job(wait=True):
            work = (gloo.send if name == "send" else gloo.recv)(tensors, peer, tag)
            return work.wait() if wait else work

        return gloo.enqueue(call, job, peer).boxed()

    return kernel


def tag_of_pair(gloo: ProcessGroupNCCL, peer: int) -> int:
    """gloo matches messages by tag: one for all messages of a pair, another one in batches."""
    low, high = sorted((gloo.number, peer))
    return (low * gloo.world + high) * 2 + (gloo.batch is not None)


def refusal(name: str):
    def kernel(*args, **named):
        raise RuntimeError(f"{name}: NCCL, as it is pretended here, has no such operation")

    return kernel


def arguments_of(name: str) -> list[str]:
    return [argument.name for argument in getattr(torch.ops.c10d, name).default._schema.arguments]


library: torch.library.Library


def install():
    """dist.init_process_group("nccl") makes these groups, and c10d's operators on CUDA tensors run
    these kernels."""
    global library
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    library = torch.library.Library("c10d", "IMPL")
    for name, (run, returned) in OPERATORS.items():
        library.impl(name, collective(name, run, returned), "CUDA")
    for name, peer in MESSAGES.items():
        library.impl(name, message(name, peer), "CUDA")
    for name in NOT_OF_NCCL:
        library.impl(name, refusal(name), "CUDA")
    start, end = dist.ProcessGroup._start_coalescing, dist.ProcessGroup._end_coalescing

    def start_coalescing(group, device):
        backend = group._get_backend(device)
        nccl = isinstance(backend, ProcessGroupNCCL)
        return backend.start_coalescing() if nccl else start(group, device)

    def end_coalescing(group, device):
        backend = group._get_backend(device)
        nccl = isinstance(backend, ProcessGroupNCCL)
        return backend.end_coalescing() if nccl else end(group, device)

    dist.ProcessGroup._start_coalescing = start_coalescing
    dist.ProcessGroup._end_coalescing = end_coalescing
