"""Our collectives against gloo's on two ranks of this machine: interleaved ratios of times, and
what pieces are good for."""

from statistics import median, quantiles

from bench.report import Result
from bench.turns import PAIRS, in_turns

MEGABYTES = (16, 64)
# Of the time of gloo's: 0.9 of its bandwidth or more for the ring, 1.2 for the reduce-scatter,
# which gloo makes by an all-reduce.
RING, REDUCE_SCATTER = round(1 / 0.9, 3), round(1 / 1.2, 3)
# What is printed, whose times are divided by whose, and how much the ratio may be.
RATIOS = (
    ("ring all-reduce, time / gloo's", "ring", "gloo", RING),
    ("the same as the page prints it", "readable ring", "gloo", None),
    ("the same, a chunk as one piece", "ring whole", "gloo", None),
    ("the same, arrivals in memory that is new each time", "ring new", "gloo", None),
    ("reduce-scatter, time / gloo's", "scatter", "gloo scatter", REDUCE_SCATTER),
    ("the same as the page prints it", "readable scatter", "gloo scatter", None),
    ("all-gather, time / gloo's", "gather", "gloo gather", None),
    ("the same as the page prints it", "readable gather", "gloo gather", None),
)


def measure_collectives() -> list[Result]:
    from shardlab.ranks import ranks

    results = []
    with ranks(2, device="cpu", announce=False) as world:
        for megabytes in MEGABYTES:
            times = world.run(times_of_both, megabytes)[0]
            for what, ours, theirs, most in RATIOS:
                ratio = round(median(a / b for a, b in zip(times[ours], times[theirs])), 3)
                low, *_, high = quantiles(
                    [a / b for a, b in zip(times[theirs + " again"], times[theirs])], n=20
                )
                note = (
                    f"{PAIRS} interleaved pairs; gloo {1000 * median(times[theirs]):.1f} ms, A/A"
                    f" {low:.2f} to {high:.2f}"
                )
                what = f"{megabytes} MB on 2 ranks: {what}"
                results.append(Result("collectives", what, ratio, "x", most, note))
    return results


def times_of_both(megabytes: int) -> dict[str, list[float]]:
    """Seconds of each, in turns."""
    import torch
    import torch.distributed as dist

    from shardlab import collectives, collectives_fast

    full, shard = torch.zeros(megabytes * 10**6 // 4), torch.zeros(megabytes * 10**6 // 8)
    parts, used = list(full.chunk(2)), collectives_fast.PIECE_BYTES
    # renamed in PyTorch 2.13
    dist_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    dist_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def with_pieces(nbytes):
        collectives_fast.PIECE_BYTES = nbytes
        collectives_fast.all_reduce(full)
        collectives_fast.PIECE_BYTES = used

    def in_new_memory():
        """The ring as it is first written: what arrives goes into a new tensor and is added when
        all of it is there."""
        me = dist.get_rank()
        for chunk, target in ((parts[1 - me], parts[me]), (parts[me], parts[1 - me])):
            arriving = torch.empty_like(target)
            sent = dist.isend(chunk, 1 - me)
            dist.recv(arriving, 1 - me)
            sent.wait()
            if chunk is parts[1 - me]:
                target += arriving
            else:
                target.copy_(arriving)

    works = {
        "gloo": lambda: dist.all_reduce(full),
        "ring": lambda: collectives_fast.all_reduce(full),
        "readable ring": lambda: collectives.all_reduce(full),
        "ring whole": lambda: with_pieces(full.nbytes),
        "ring new": in_new_memory,
        "gloo again": lambda: dist.all_reduce(full),
        "gloo scatter": lambda: dist_scatter(shard, full),
        "scatter": lambda: collectives_fast.reduce_scatter(shard, full),
        "readable scatter": lambda: collectives.reduce_scatter(shard, full),
        "gloo scatter again": lambda: dist_scatter(shard, full),
        "gloo gather": lambda: dist_gather(full, shard),
        "gather": lambda: collectives_fast.all_gather(full, shard),
        "readable gather": lambda: collectives.all_gather(full, shard),
        "gloo gather again": lambda: dist_gather(full, shard),
    }

    return in_turns(works)
