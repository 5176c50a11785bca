"""A small model of PyTorch's caching allocator on one stream, after
c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13. Requests are rounded up to 512 bytes. Up to 1 MiB
they come from segments of 2 MiB, below 10 MiB from segments of 20 MiB, else from their own, rounded
up to 2 MiB. The smallest free block that fits is taken; its rest is cut off if it has at least 512
bytes (small) or more than 1 MiB (large). Freed neighbours join. Without room for a new segment,
those that are free whole go, once."""

from collections import Counter
from dataclasses import dataclass

from ranklab.measure.cuda import Reading

KIB, MIB = 1024, 1024**2


@dataclass(eq=False)
class Block:
    start: int
    size: int
    pool: str
    requested: int = 0
    free: bool = True
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def part(self) -> bool:
        """Whether it is not a whole segment."""
        return self.before is not None or self.after is not None


class OutOfMemory(RuntimeError):
    pass


class Simulator:
    """`now` and `peak` hold, by (counter, pool), requested, active, reserved, segments,
    allocations, and what is split and free."""

    def __init__(self, capacity: int = 1 << 60, context: int = 0):
        self.capacity, self.context, self.next_start = capacity, context, 0
        self.blocks: list[Block] = []
        self.workspaces: dict[str, Block] = {}  # by thread
        self.now, self.peak = Counter(), Counter()

    def allocate(self, nbytes: int) -> Block | None:
        if nbytes == 0:  # never reaches the allocator
            return None
        size = -(-nbytes // 512) * 512
        pool = "small" if size <= MIB else "large"
        fitting = [b for b in self.blocks if b.free and b.pool == pool and b.size >= size]
        block = min(fitting, key=lambda b: (b.size, b.start), default=None) or self.segment(
            size, pool
        )
        if block.part:
            self.count(pool, split_bytes=-block.size, splits=-1)
        rest = block.size - size
        if rest >= 512 if pool == "small" else rest > MIB:
            cut = Block(block.start + size, rest, pool, before=block, after=block.after)
            if block.after:
                block.after.before = cut
            block.after, block.size = cut, size
            self.blocks.append(cut)
            self.count(pool, split_bytes=rest, splits=1)
        block.free, block.requested = False, nbytes
        self.count(pool, requested=nbytes, active=block.size, allocations=1)
        return block

    def segment(self, size: int, pool: str) -> Block:
        whole = (
            2 * MIB
            if pool == "small"
            else 20 * MIB
            if size < 10 * MIB
            else -(-size // (2 * MIB)) * 2 * MIB
        )
        if self.now["reserved", "all"] + whole > self.capacity:
            self.empty_cache()
        if self.now["reserved", "all"] + whole > self.capacity:
            raise OutOfMemory(f"tried to allocate {whole} bytes")
        block = Block(self.next_start, whole, pool)
        self.next_start += whole + 2 * MIB  # two segments are no neighbours
        self.blocks.append(block)
        self.count(pool, reserved=whole, segments=1)
        return block

    def free(self, block: Block | None):
        if block is None:
            return
        pool, change = (
            block.pool,
            Counter(requested=-block.requested, active=-block.size, allocations=-1),
        )
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                change.update(split_bytes=-other.size, splits=-1)
                self.join(block, other)
        if block.part:
            change.update(split_bytes=block.size, splits=1)
        self.count(pool, **change)

    def join(self, block: Block, other: Block):
        if other is block.before:
            block.start, block.before = other.start, other.before
            if block.before:
                block.before.after = block
        else:
            block.after = other.after
            if block.after:
                block.after.before = block
        block.size += other.size
        self.blocks.remove(other)

    def empty_cache(self):
        for block in [b for b in self.blocks if b.free and not b.part]:
            self.blocks.remove(block)
            self.count(block.pool, reserved=-block.size, segments=-1)

    def count(self, pool: str, **changes: int):
        for name, change in changes.items():
            for where in (pool, "all"):
                self.now[name, where] += change
                self.peak[name, where] = max(self.peak[name, where], self.now[name, where])

    # --- as measure.cuda.CachingAllocator ---------------------------------------------------------

    def reading(self, which: str = "current") -> Reading:
        counts = self.now if which == "current" else self.peak
        return Reading(*(counts[name, "all"] for name in Reading._fields))

    def start(self):
        self.peak = Counter(self.now)

    def used(self) -> int:
        return self.now["reserved", "all"] + self.context

    def workspace(self, thread: str, nbytes: int):
        """The workspace that cuBLAS has from a thread's first product on."""
        if thread not in self.workspaces:
            self.workspaces[thread] = self.allocate(nbytes)

    def lend_workspaces(self, nbytes: int = 8_519_680):
        for thread in ("forward", "backward"):
            self.workspace(thread, nbytes)

    def clear_workspaces(self):
        while self.workspaces:
            self.free(self.workspaces.popitem()[1])
