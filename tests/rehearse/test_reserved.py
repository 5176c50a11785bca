"""Reserved bytes of a rehearsal, beside the model of PyTorch's allocator that tests have, which is
compared with numbers that real GPUs printed."""

import random

import pytest
from caching_allocator import KIB, MIB, Simulator

from ranklab.rehearse.reserved import Reserved

SIZES = [1, 512, 513, 300 * KIB, MIB, MIB + 1, 3 * MIB, 10 * MIB - 1, 10 * MIB, 33 * MIB + 5]


@pytest.mark.parametrize("capacity", [1 << 60, 400 * MIB])
@pytest.mark.parametrize("seed", range(5))
def test_segments_are_those_of_the_model(seed, capacity):
    """Must catch: another size of a segment; an end that is cut off or kept wrongly; the first
    block that fits instead of the smallest; neighbours that stay apart, or segments that join;
    segments that go though a part of them is taken, or stay where there is no room."""
    draw, model, ours = random.Random(seed), Simulator(capacity), Reserved(capacity)
    alive = []
    for _ in range(600):
        if alive and (draw.random() < 0.45 or model.now["active", "all"] > 200 * MIB):
            block, start = alive.pop(draw.randrange(len(alive)))
            model.free(block)
            ours.give(start)
        else:
            size = draw.choice(SIZES) + draw.choice([0, 0, draw.randrange(5 * MIB)])
            alive.append((model.allocate(size), ours.take(size, "main")))
        assert ours.now == model.now["reserved", "all"]
    assert ours.peak == model.peak["reserved", "all"]
    for block, start in alive:
        model.free(block)
        ours.give(start)
    model.empty_cache()
    ours.release()
    assert ours.now == model.now["reserved", "all"] == 0


def test_streams_share_no_block():
    """Must catch: a block of one stream that another takes, which waits for nothing."""
    ours = Reserved(1 << 60)
    ours.give(ours.take(30 * MIB, "main"))
    ours.give(ours.take(30 * MIB, "messages"))
    ours.take(30 * MIB, "main")
    assert (ours.now, ours.take(0, "main")) == (60 * MIB, None)
