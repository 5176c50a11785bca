"""The steps from the ledger's bytes to nvidia-smi, without a GPU: the caching allocator of
rehearsals, compared with numbers that real GPUs printed, replaces PyTorch's, and the account of a
real step must come out."""

import itertools
import random

import pytest
import torch

from coursekit.topics.where_the_memory_goes.cuda_account import (
    UNEXPLAINED,
    CachingAllocator,
    CudaAccount,
    Reading,
    account_rows,
)
from ranklab.measure.ledger import Ledger
from ranklab.rehearse.reserved import Reserved
from shardlab.common.torch_internals import current_backward, storage_key
from shardlab.gpt import GPT, GPTConfig, next_token_loss

KIB, MIB = 1024, 1024**2
WORKSPACE = 8_519_680  # bytes that cuBLAS takes for a thread


class Gpu(Reserved):
    """The model with what cuda_account.CachingAllocator says of a GPU."""

    def __init__(self, capacity: int = 1 << 60, context: int = 0):
        super().__init__(capacity)
        self.context, self.workspaces = context, {}  # by thread
        self.requested: dict[int, int] = {}  # start -> bytes
        self.start()

    def take(self, nbytes: int, stream: str = "main") -> int | None:
        start = super().take(nbytes, stream)
        if start is not None:
            self.requested[start] = nbytes
        self.peaks = Reading(*map(max, self.peaks, self.reading()))
        return start

    def give(self, start: int | None):
        self.requested.pop(start, None)
        super().give(start)

    def reading(self, which: str = "current") -> Reading:
        active = sum(size for _, size in self.taken.values())
        now = Reading(sum(self.requested.values()), active, self.now)
        return self.peaks if which == "peak" else now

    def start(self):
        self.peaks = self.reading()

    def used(self) -> int:
        return self.now + self.context

    def lend_workspaces(self, *threads: str):
        for thread in threads or ("forward", "backward"):
            if thread not in self.workspaces:  # from its first product on
                self.workspaces[thread] = self.take(WORKSPACE)

    def clear_workspaces(self):
        while self.workspaces:
            self.give(self.workspaces.popitem()[1])


def merlinite() -> list[int]:
    """Bytes of each tensor of a Mistral 7B with 32,008 tokens in 16 bits, in the order in which
    Module.to() takes them: children first, parameters, then buffers. Each attention has tables of
    cosines and sines for 32,768 positions, as transformers then had."""
    hidden, inner, key_value, tokens, head, positions = 4096, 14336, 1024, 32_008, 128, 32_768
    queries, keys, table = hidden * hidden, key_value * hidden, positions * head
    attention = [queries, keys, keys, queries, head // 2, table, table]
    layer = [*attention, *[inner * hidden] * 3, hidden, hidden]
    return [2 * elements for elements in (tokens * hidden, *(32 * layer), hidden, tokens * hidden)]


def test_a_printed_memory_summary():
    """memory_summary() after `ilab model train` on an NVIDIA L4 (InstructLab workshop, August
    2024), to the digit. Mutations: a size class or a pool's segment of another size; the rest of a
    large block never cut off; a new segment before the split ones are used."""
    gpu, peaks = Gpu(), [0, 0, 0]
    of_pools = lambda counts: [sum(counts), *counts]  # large blocks, then small ones
    free = lambda: [sum(size for size, _ in gpu.free["main", small]) for small in (False, True)]
    for nbytes in merlinite():
        gpu.take(nbytes)
        peaks = [*map(max, peaks, of_pools(free()))]
    requested, active, _ = gpu.reading()
    assert requested // MIB == active // MIB == 14324
    sizes = [*gpu.segments.values()]
    small = [size for size in sizes if size == 2 * MIB]
    assert [sum(sizes) // MIB, sum(small) // MIB] == [14586, 2]
    assert [len(sizes), len(small)] == [227, 1]
    pools = [pool for pool, _ in gpu.taken.values()]
    assert of_pools([pools.count(("main", small)) for small in (False, True)]) == [387, 290, 97]
    split = [len(gpu.free["main", small]) for small in (False, True)]
    assert of_pools(split) == [67, 66, 1]
    assert [nbytes // KIB for nbytes in of_pools(free())] == [267_624, 266_112, 1_512]
    assert [nbytes // KIB for nbytes in peaks] == [273_856, 272_320, 2_047]


def test_ends_left_uncut_and_the_best_fit():
    """Mutations: the rest of a large block cut off from 512 bytes on, or not at 1 MiB and a bit;
    the largest block that fits, or the first."""
    gpu = Gpu()
    for nbytes, active in (
        (11 * MIB, 12 * MIB),
        (11 * MIB - 1, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512),
    ):
        block = gpu.take(nbytes)
        assert gpu.reading() == (nbytes, active, 12 * MIB)
        gpu.give(block)
        gpu.release()
    blocks = [gpu.take(size * MIB) for size in (40, 30, 50)]
    for block in blocks:
        gpu.give(block)
    assert gpu.take(29 * MIB) == blocks[1] and gpu.now == 120 * MIB


def test_the_arithmetic_of_another():
    """A server of SGLang printed this (KiB: now; peak). Mutation: a row taken from another
    counter's peak."""
    requested, active, reserved, split = 184_648, 184_648, 235_520, 30_391
    assert reserved - active - split in (20 * KIB, 20 * KIB + 1)  # each number is cut off at a KiB
    large = dict(active=184_576, reserved=233_472, split=28_416)
    assert large["reserved"] - large["active"] - large["split"] == 20 * KIB
    then, peak = Reading(requested, active, reserved), Reading(192_832, 192_833, 235_520)
    rows = account_rows(requested, 0, 0, then, peak, outside=500 * KIB)
    assert [amount for _, amount in rows] == [184_648, 0, 0, 0, 8_184, 1, 42_687, 512_000]


@pytest.mark.parametrize("capacity", [1 << 60, 100 * MIB])
@pytest.mark.parametrize("seed", range(10))
def test_what_holds_at_every_point(seed, capacity):
    """Mutations: a free neighbour forgotten, or joined over the end of its segment; a block cut off
    without being counted; segments that go though a part of them is taken."""
    draw, gpu, live, asked = random.Random(seed), Gpu(capacity), [], 0
    for _ in range(400):
        if live and draw.random() < 0.45:
            block, nbytes = live.pop(draw.randrange(len(live)))
            asked -= nbytes
            gpu.give(block)
        else:
            sizes = (1, 700, 40 * KIB, MIB, MIB + 1, 3 * MIB, 10 * MIB, 11 * MIB + 5)
            nbytes = draw.choice(sizes)
            live.append((gpu.take(nbytes), nbytes))
            asked += nbytes
        requested, active, reserved = gpu.reading()
        assert asked == requested <= active <= reserved
        assert active + sum(gpu.free_sizes.values()) == reserved
    for block, _ in live:
        gpu.give(block)
    gpu.release()
    assert gpu.reading() == (0, 0, 0) and not gpu.free_sizes


def test_a_full_card():
    """Mutation: the cache never emptied before a new segment, or emptied of split segments too."""
    gpu = Gpu(capacity=40 * MIB)
    small, large = gpu.take(1), gpu.take(30 * MIB)
    gpu.give(large)
    gpu.take(38 * MIB)
    assert gpu.now == 40 * MIB and small in gpu.taken


def test_workspaces_of_later_products():
    """Mutations: all of cuBLAS's workspaces of the end counted at the peak, so that the unexplained
    rest falls below 0; any surplus called a workspace."""
    peak = Reading(1_100, 1_536, 2 * MIB)
    for then, lent, unexplained in ((970, 20, 0), (950, 0, 0), (1_030, 60, 20), (940, 0, -10)):
        rows = dict(account_rows(900, 50, 60, Reading(then, 1_536, 2 * MIB), peak, outside=7))
        assert (rows["workspaces of cuBLAS"], rows[UNEXPLAINED]) == (lent, unexplained)
        assert sum(rows.values()) == 2 * MIB + 7


class OnAGpu(Ledger):
    """A ledger on the CPU whose storages also live in the model of the allocator, as they would on
    a GPU; products take workspaces as cuBLAS does, a forward thread's and a backward thread's, and
    the loss takes scratch memory while it runs."""

    scratch_bytes = 3_000_000

    def __init__(self, gpu, *args):
        super().__init__(*args, device="cpu")
        self.gpu, self.held = gpu, {}

    def _enter(self, storage, *rest):
        key, there = storage_key(storage), self.gpu.there
        self.held[key] = there.pop(key) if key in there else self.gpu.take(storage.nbytes())
        super()._enter(storage, *rest)

    def _forget(self, key):
        self.gpu.give(self.held.pop(key))
        super()._forget(key)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "mm" in function.overloadpacket.__name__:
            self.gpu.lend_workspaces("forward" if current_backward() is None else "backward")
        if "_log_softmax" in function.overloadpacket.__name__:
            self.gpu.give(self.gpu.take(self.scratch_bytes))
        return super().__torch_dispatch__(function, types, args, kwargs)


class Known(Gpu):
    """On this GPU the tensors are already: they are not allocated a second time when the ledger
    meets them."""

    def __init__(self, tensors, **settings):
        super().__init__(**settings)
        self.there = {
            storage_key(t.untyped_storage()): self.take(t.untyped_storage().nbytes())
            for t in tensors
        }


def a_step(changes=(), surprise=0):
    """(account, ledger, GPU) of a steady training step; `surprise` bytes appear in it that
    nobody knows of."""
    torch.manual_seed(0)
    sizes = dict(layers=2, hidden=64, heads=4, vocabulary=5_003, max_sequence=64)
    model = GPT(GPTConfig(**sizes, **dict(changes)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens, unused = torch.zeros(2, 64, dtype=torch.long), torch.zeros(1_234)

    def step():
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    states = [t for state in optimizer.state.values() for t in state.values()]
    gpu = Known([*dict.fromkeys(model.parameters()), *states, tokens, unused], context=500 * MIB)
    gpu.lend_workspaces()  # from the step before
    with OnAGpu(gpu, model, optimizer) as ledger, CudaAccount(ledger, gpu) as account:
        if surprise:
            gpu.take(surprise)
        step()
    return account, ledger, gpu


@pytest.mark.parametrize(
    "changes",
    [{}, dict(dropout=0.1, fused_attention=False), dict(gated_mlp=1, biases=0, tied_head=0)],
)
def test_the_account_of_a_step(changes):
    """Mutations: counters read at their own peaks and not at the ledger's; the batch counted twice,
    because the ledger meets it when autograd keeps it; workspaces counted among what was there
    before."""
    account, ledger, gpu = a_step(changes)
    rows, at = dict(account.rows()), ledger.timeline.index(ledger.peak)
    assert sum(rows.values()) == account.peak.reserved + 500 * MIB == gpu.used()
    assert (ledger.peak.operation, ledger.peak.phase) == ("_log_softmax_backward_data", "backward")
    assert rows["the ledger's bytes"] == ledger.peak.bytes.total
    assert rows["there before, not the model's"] == account.before - 8 * 128 == 4 * 1_234
    assert rows["workspaces of cuBLAS"] == account.workspaces == 2 * WORKSPACE
    assert rows[UNEXPLAINED] == 0
    # of the operation: its scratch is gone before that is there
    result = ledger.peak.bytes.total - ledger.timeline[at - 1].bytes.total
    inside = max(OnAGpu.scratch_bytes - result, 0)
    assert rows["inside operations, beyond the ledger's peak"] == inside
    assert rows["CUDA context, kernels, other processes"] == 500 * MIB
    assert min(rows.values()) >= 0


@pytest.mark.parametrize("surprise", [1_000, 5_000_000])
def test_what_nobody_knows_of_is_seen(surprise):
    """Mutation: what is not explained hidden in what was there before, among workspaces, or held
    back."""
    account, _, gpu = a_step(surprise=surprise)
    rows = dict(account.rows())
    assert rows[UNEXPLAINED] == surprise
    assert sum(rows.values()) == gpu.used()
    assert min(rows.values()) >= 0


def test_lending_workspaces_is_not_seen():
    """Mutation: the small product before a step enters the ledger's timeline, or leaves its tensors
    there."""
    model = torch.nn.Linear(3, 3)
    allocator = object.__new__(CachingAllocator)
    allocator.device = torch.device("cpu")
    with Ledger(model, device="cpu") as ledger:
        allocator.lend_workspaces()
        assert len(ledger.timeline) == 1 and ledger.met() == 0
        model(torch.zeros(2, 3))
    assert len(ledger.timeline) > 1


def test_other_streams_hold_blocks_longer():
    """Mutation: allocated_bytes instead of active_bytes, which alone has blocks that another stream
    may still use."""
    counters = dict(requested=900, allocated=512, active=1_024, reserved=2 * MIB)
    stats = {f"{name}_bytes": {"all": dict(current=n, peak=n)} for name, n in counters.items()}
    allocator = object.__new__(CachingAllocator)
    allocator.device = torch.device("cuda", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
        assert allocator.reading() == allocator.reading("peak") == (900, 1_024, 2 * MIB)


def test_the_counters_exist():
    """Mutation: a counter misspelt, which would show on a GPU first."""
    for name in ("requested_bytes", "active_bytes", "reserved_bytes"):
        assert f"{name}.{{all," in torch.cuda.memory_stats.__doc__, name
    functions = "get_allocator_backend memory_stats_as_nested_dict reset_peak_memory_stats"
    for name in f"{functions} mem_get_info synchronize".split():
        assert callable(getattr(torch.cuda, name)), name


def test_a_ledger_of_one_kind_of_device():
    """Meta tensors play the other device. Mutation: a ledger for one kind of device that counts
    another's, or trips over it."""
    model = torch.nn.Linear(3, 5)
    with Ledger(model, device="cpu") as here, torch.device("meta"):
        elsewhere = torch.zeros(1_000)
        doubled = elsewhere * 2
    assert here.bytes.total == 4 * 20 and doubled.is_meta
    counts = []
    with Ledger(model, device="meta") as there:
        there.when_fuller = lambda: counts.append(there.bytes.total)
        model(torch.zeros(2, 3)).sum().backward()
        kept = [torch.zeros(100, device="meta") for _ in itertools.repeat(None, 3)]
        del kept[1:]
        kept.append(torch.zeros(50, device="meta"))
    assert there.bytes.total == 4 * 150 and counts == [400, 800, 1_200]


def test_streams_share_no_block():
    """Must catch: a block of one stream that another takes, which waits for nothing."""
    ours = Reserved(1 << 60)
    ours.give(ours.take(30 * MIB, "main"))
    ours.give(ours.take(30 * MIB, "messages"))
    ours.take(30 * MIB, "main")
    assert (ours.now, ours.take(0, "main")) == (60 * MIB, None)
