"""Times of several works on ranks, in turns: what else the machine does meets all of them alike."""

from time import perf_counter

PAIRS = 31


def in_turns(works: dict) -> dict[str, list[float]]:
    """Seconds of each work on this rank, between two barriers, PAIRS times after a warm-up."""
    import torch.distributed as dist

    def seconds(work):
        dist.barrier()
        begin = perf_counter()
        work()
        dist.barrier()
        return perf_counter() - begin

    for _ in range(3):  # PyTorch arranges its buckets anew after the first step
        for work in works.values():
            seconds(work)
    turns = [{name: seconds(work) for name, work in works.items()} for _ in range(PAIRS)]
    return {name: [turn[name] for turn in turns] for name in works}
