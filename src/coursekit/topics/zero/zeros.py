"""Bytes of lab 6 where NCCL has equal chunks, so that zeros stand at the end of the last ones."""


def with_zeros(wanted: list[int], stage: int, flats: list[int], counters: int) -> list[int]:
    """Model states of each rank in fp32 with AdamW. `wanted` are those without zeros, `flats` the
    elements of each tensor that is cut, `counters` how many parameters count their steps. Buckets,
    units and their gradients have zeros, moments in stage 3 have none."""
    n = len(wanted)
    if stage != 3:
        return [wanted[0] + 4 * (-sum(flats) % n) * (stage > 0)] * n
    chunks = [-(-elements // n) for elements in flats]
    trained = lambda r: sum(
        sorted((0, elements - r * chunk, chunk))[1] for elements, chunk in zip(flats, chunks)
    )
    return [8 * (sum(chunks) + trained(r)) + 4 * counters for r in range(n)]
