"""Messages, bytes and parts of a data-parallel step. Its seconds as a whole are in
test_data_parallel_time.py."""

import math
import random

import pytest
from solved import Given

from coursekit.formulas import quantities

LINK = dict(latency_seconds=2e-4, link_bytes_per_second=1.25e8)


def on_the_link(nbytes):
    return LINK["latency_seconds"] + nbytes / LINK["link_bytes_per_second"]


def around_a_ring(ranks, nbytes):
    """Seconds of a ring all-reduce, step by step."""
    return sum(on_the_link(nbytes / ranks) for _ in range(2 * (ranks - 1)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_seconds(ranks):
    """Must catch: the latency paid once; messages that travel side by side; a server that talks to
    all ranks at once."""
    nbytes, tensors = 10_000_000, 60
    given = dict(parameter_tensors=tensors, parameter_bytes=9_000_000, reduced_bytes=nbytes, **LINK)
    found = Given(data_parallel=ranks, equal_bucket_bytes=nbytes / 5, **given)
    assert math.isclose(found.equal_bucket_seconds, around_a_ring(ranks, nbytes / 5))
    one_by_one = sum(around_a_ring(ranks, nbytes / tensors) for _ in range(tensors))
    assert math.isclose(found.per_tensor_seconds, one_by_one)
    messages = [9_000_000 / tensors, nbytes / tensors] * tensors * (ranks - 1)
    served = sum(map(on_the_link, messages))
    assert math.isclose(found.server_seconds, served, rel_tol=1e-12)


def test_number_of_buckets():
    """Mutation: rounded down; tensors left out of the minimum."""
    import torch

    from shardlab.data_parallel import make_buckets

    def both(sizes, bucket_bytes):
        tensors = [torch.empty(size, device="meta") for size in sizes]
        given = dict(parameter_tensors=len(sizes), gradient_bytes=4 * sum(sizes))
        formula = Given(bucket_bytes=bucket_bytes, **given).gradient_buckets_at_most
        return len(make_buckets(tensors, bucket_bytes)), formula

    for size, count, each in ((10, 12, 3), (7, 5, 1), (1, 9, 9), (3, 10, 4)):
        there, formula = both([size] * count, 4 * size * each)
        assert there == formula == math.ceil(count / each)
    assert both([5, 8, 3], 1) == (3, 3) and both([5, 8, 3], 10**6) == (1, 1)
    generator = random.Random(0)
    for _ in range(200):
        sizes = [
            generator.choice((1, 10, 100, 1000)) * generator.randint(1, 9)
            for _ in range(generator.randint(1, 30))
        ]
        there, formula = both(sizes, generator.randint(1, 20_000))
        assert 1 <= there <= formula


def test_presets_go_in():
    """A model of the presets gives what is sent, to the byte. Mutation: a parameter's element
    instead of a gradient's."""
    given = quantities(model="GPT-2 124M", recipe="fp32 Adam", bucket_bytes=25 << 20)
    found = Given(**given)
    assert found.reduced_bytes == 4 * (124_439_808 + 148) and found.gradient_buckets == 14
    half = Given(**{**given, "gradient_element_bytes": 2}).reduced_bytes
    assert 2 * half == found.reduced_bytes
