"""Bytes that PyTorch's caching allocator reserves: its segments, of which storages are parts.

The rules, from c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13 with default settings, in our
words. A request is rounded up to 512 bytes. Each stream has two pools: up to 1 MiB a request comes
from segments of 2 MiB; a larger one from segments of 20 MiB below 10 MiB, and else of the request
in whole 2 MiB. The smallest free block that is large enough is taken, and the rest cut off if it
has at least 512 bytes, or in large segments more than 1 MiB. A block that is given back joins free
neighbours. Segments stay, until a new one has no room: then those that are free whole go.

With expandable_segments:True a pool has one segment that grows by whole pages, of 2 MiB where
blocks are small and else 20, from its last free block on; every rest is cut off, and pages that are
free whole can go.
"""

from bisect import bisect_left, insort
from collections import defaultdict

ROUNDED, SMALL_REQUEST, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
LARGE_REQUEST, LARGE_SEGMENT = 10 << 20, 20 << 20
Pool = tuple[str, bool]  # a stream, and whether its blocks are small


class Reserved:
    """Segments of `capacity` bytes, beyond which it still gives: a report says what is missing."""

    def __init__(self, capacity: int, expandable: bool = False):
        self.capacity, self.expandable = capacity, expandable
        self.now = self.peak = self.end = 0
        self.ends: dict[Pool, int] = {}  # of segments that grow
        self.segments: dict[int, int] = {}  # start -> size
        self.taken: dict[int, tuple[Pool, int]] = {}  # start -> pool and size
        self.free: dict[Pool, list[tuple[int, int]]] = defaultdict(list)  # sizes and starts, sorted
        self.free_sizes: dict[int, int] = {}  # start -> size
        self.free_starts: dict[int, int] = {}  # end -> start

    def take(self, nbytes: int, stream: str) -> int | None:
        """The start of a block; None for no bytes, of which the allocator hears nothing."""
        if not nbytes:
            return None
        size = rounded(nbytes, ROUNDED)
        pool = stream, size <= SMALL_REQUEST
        place = bisect_left(self.free[pool], (size, 0))
        if place == len(self.free[pool]):
            self.grow(pool, size)
            place = bisect_left(self.free[pool], (size, 0))
        whole, start = self.free[pool][place]
        self.remove(pool, start)
        rest = whole - size
        if rest >= ROUNDED if pool[1] or self.expandable else rest > SMALL_REQUEST:
            self.insert(pool, start + size, rest)
        else:
            size = whole
        self.taken[start] = pool, size
        return start

    def give(self, start: int | None):
        if start is None:
            return
        pool, size = self.taken.pop(start)
        if start in self.free_starts:
            start, size = self.free_starts[start], size + start - self.free_starts[start]
            self.remove(pool, start)
        if start + size in self.free_sizes:
            size += self.remove(pool, start + size)
        self.insert(pool, start, size)

    def grow(self, pool: Pool, size: int):
        """Reserve what makes a free block of so many bytes."""
        if self.now + self.missing(pool, size)[1] > self.capacity:
            self.release()
        start, more = self.missing(pool, size)
        self.now += more
        self.peak = max(self.peak, self.now)
        if self.expandable:
            self.ends[pool] += more
            more += self.remove(pool, start) if start in self.free_sizes else 0
        else:
            self.segments[start] = more
            self.end += more + 1  # two are no neighbours
        self.insert(pool, start, more)

    def missing(self, pool: Pool, size: int) -> tuple[int, int]:
        """Where that block begins, and bytes to reserve for it."""
        page = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        if self.expandable:
            end = self.ends.setdefault(pool, LARGE_SEGMENT * len(self.ends) << 30)
            start = self.free_starts.get(end, end)
            return start, rounded(size - (end - start), page)
        return self.end, rounded(size, SMALL_SEGMENT) if size >= LARGE_REQUEST else page

    def release(self):
        """Give back segments, or pages, that are free whole, as torch.cuda.empty_cache() does."""
        for pool, free in self.free.items():
            page = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
            for size, start in list(free):
                end = start + size
                if self.expandable:
                    first, last = rounded(start, page), end // page * page
                else:
                    first, last = start, end if self.segments.get(start) == size else start
                if first < last:
                    self.now -= last - first
                    self.remove(pool, start)
                    for begin, rest in ((start, first - start), (last, end - last)):
                        if rest:
                            self.insert(pool, begin, rest)
                    if self.ends.get(pool) == last:
                        self.ends[pool] = first

    def insert(self, pool: Pool, start: int, size: int):
        insort(self.free[pool], (size, start))
        self.free_sizes[start], self.free_starts[start + size] = size, start

    def remove(self, pool: Pool, start: int) -> int:
        size = self.free_sizes.pop(start)
        del self.free[pool][bisect_left(self.free[pool], (size, start))]
        del self.free_starts[start + size]
        return size


def rounded(size: int, to: int) -> int:
    return -(-size // to) * to
