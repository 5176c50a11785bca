"""The moves of a step under ZeRO: what the real code does on ranks, one move after the other, and
what the formulas say of it."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from night import at_night, world_of
from torch import nn

from coursekit.topics.zero.moves import (
    STAGES,
    AllGather,
    AllReduce,
    Backward,
    Forward,
    Free,
    HeldPart,
    ReduceScatter,
    Update,
    follow_moves,
)
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab.data_parallel import DistributedDataParallel
from shardlab.zero.hardened import stage1, stage2, stage3

WIDTHS = (120, 120, 132, 144)
# of the units, in elements: 12 divides them, no two are equal
SIZES = [out * into for into, out in zip(WIDTHS, WIDTHS[1:])]
SMALL = 12_000  # bytes of activations and their gradients: less than the smallest shard on 4 ranks
# gloo's thread may keep a buffer a moment longer: of each point the leanest of three counts
STEPS = 3
NOTHING, SHARD, WHOLE = HeldPart.NOTHING, HeldPart.SHARD, HeldPart.WHOLE


class Block(nn.Module):
    """A unit, and a bucket: a weight."""

    def __init__(self, into, out):
        super().__init__()
        self.linear = nn.Linear(into, out, bias=False)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Watched:
    """A model and its optimizer under a stage; `points` are the moves that it makes, each with
    what the rank has afterwards.

    A point is weighed when the next thing begins: inside a hook of autograd a gradient that has
    gone is alive until it returns."""

    def __init__(self, stage):
        self.stage, self.points, self.pending, self.ledger = stage, [], None, None
        self.blocks = [Block(into, out) for into, out in zip(WIDTHS, WIDTHS[1:])]
        self.model = nn.Sequential(*self.blocks)
        self.parameters = [list(block.parameters()) for block in self.blocks]
        self.arrived = [0] * len(self.blocks)
        for unit, block in enumerate(self.blocks):
            block.linear.register_forward_hook(
                lambda module, args, output, unit=unit: self.forward(unit, output)
            )
            if stage < 3:
                for parameter in block.parameters():  # before the stage's own hooks
                    parameter.register_post_accumulate_grad_hook(
                        lambda _, unit=unit: self.gradient(unit)
                    )
        getattr(self, f"stage_{stage}")()

    def unit_of(self, parameter):
        return next(
            unit for unit, own in enumerate(self.parameters) if any(parameter is p for p in own)
        )

    def stage_0(self):
        self.model = DistributedDataParallel(self.model, bucket_bytes=4 * min(SIZES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.watch_update(self.optimizer)
        send = self.model.send_next
        self.model.send_next = lambda: self.around(
            send, AllReduce(self.unit_of(self.model.buckets[len(self.model.sent)][0]))
        )

    def stage_1(self, module=stage1):
        self.optimizer = optimizer = module.ShardedOptimizer(
            self.model.parameters(),
            torch.optim.SGD,
            bucket_bytes=4 * max(SIZES),
            lr=0.1,
            momentum=0.9,
        )
        self.watch_update(optimizer.inner)
        for bucket in optimizer.buckets:
            unit = self.unit_of(bucket.parameters[0])
            bucket.reduce_scatter = partial(self.around, bucket.reduce_scatter, ReduceScatter(unit))
            bucket.all_gather = partial(self.around, bucket.all_gather, AllGather(unit))

    def stage_2(self):
        self.stage_1(stage2)

    def stage_3(self):
        stage3.fully_shard(self.model, self.blocks)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.watch_update(self.optimizer)
        for unit, block in enumerate(self.blocks):
            own = block.sharded_unit

            def leave_backward(unit=unit, own=own, leave=own.leave_backward):
                if own.whole:
                    self.note(Backward(unit))
                leave()

            def free(unit=unit, own=own, free=own.free):
                self.around(free, Free(unit)) if own.whole else free()

            def gather(unit=unit, own=own, gather=own.gather):
                gather() if own.whole else self.around(gather, AllGather(unit))

            own.gather, own.leave_backward, own.free = gather, leave_backward, free
            for flat in own.flats:
                flat.reduce = lambda *args, reduce=flat.reduce: self.weigh() or reduce(*args)
                flat.shards[0].register_post_accumulate_grad_hook(
                    lambda _, unit=unit: self.note(ReduceScatter(unit))
                )

    def watch_update(self, optimizer):
        optimizer.register_step_pre_hook(lambda *_: self.weigh())
        optimizer.register_step_post_hook(lambda *_: self.note(Update()))

    def forward(self, unit, output):
        self.note(Forward(unit))
        # in backward: all is done in the units behind it
        output.register_hook(lambda _: self.weigh())

    def gradient(self, unit):
        self.arrived[unit] += 1
        if self.arrived[unit] == len(self.parameters[unit]):
            self.arrived[unit] = 0
            self.note(Backward(unit))

    def around(self, function, move, *args):
        self.weigh()
        function(*args)
        self.note(move)

    def note(self, move):
        self.weigh()
        self.pending = move

    def weigh(self):
        move, self.pending = self.pending, None
        if move is None or self.ledger is None:
            return
        shards = [p for group in self.optimizer.param_groups for p in group["params"]]
        with_grad = [p for p in (*shards, *self.model.parameters()) if p.grad is not None]
        storages = [p.grad.untyped_storage() for p in with_grad]
        gradients = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
        counts = self.ledger.bytes
        held = counts.parameters, counts.optimizer, counts.gathered
        values = None
        if self.stage < 3:
            values = [sum(p.detach().double().sum().item() for p in own) for own in self.parameters]
        self.points.append([move, held, gradients, counts.total - sum(held) - gradients, values])

    def step(self, microbatches):
        self.optimizer.zero_grad()
        for number in range(microbatches):
            torch.manual_seed(10 * dist.get_rank() + number)
            last = number == microbatches - 1
            with self.model.no_sync() if self.stage == 0 and not last else torch.enable_grad():
                self.model(torch.randn(1, WIDTHS[0])).sum().backward()
        self.optimizer.step()
        self.weigh()


def collectives_in(messages):
    """(kind, bytes of the whole array) of each collective of this rank. Of a ring, the chunk that a
    rank sends first says which it is, and chunks are equal here."""
    n, me = dist.get_world_size(), dist.get_rank()
    found = [("AllReduce", m.nbytes) for m in messages if m.operation == "all_reduce"]
    sends = [m for m in messages if m.operation == "send"]
    for first in range(0, len(sends), n - 1):
        ring = sends[first : first + n - 1]
        begins = {(me - 1) % n: "ReduceScatter", me: "AllGather"}
        found.append((begins[ring[0].chunk], sum(m.nbytes for m in ring) * n // (n - 1)))
    return found


def watched(stage, microbatches):
    """(points, collectives) of the leanest of the steps."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    watch = Watched(stage)
    watch.step(microbatches)  # the optimizer makes its states
    seen = []
    for _ in range(STEPS):
        watch.optimizer.zero_grad()
        watch.points = []
        with Ledger(watch.model, watch.optimizer) as watch.ledger, CommunicationLog() as log:
            watch.step(microbatches)
        watch.ledger = None
        seen.append(watch.points)
    first, *others = [[point[:3] for point in points] for points in seen]
    assert all(points == first for points in others), "every step is the same"
    leanest = [min(same, key=lambda point: point[3]) for same in zip(*seen)]
    points = [[*lean[:4], last[4]] for lean, last in zip(leanest, seen[-1])]
    return points, collectives_in(log.messages)


world = world_of(2, *at_night(4))


def said(pictures, field, n):
    """Bytes of float32 that every rank has of it, over all units."""
    parts = [(getattr(has, field), size) for has, size in zip(pictures, SIZES)]
    return sum(4 * {NOTHING: 0, SHARD: size // n, WHOLE: size}[part] for part, size in parts)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("microbatches", (1, 2))
def test_the_moves_are_what_the_code_does(world, stage, microbatches):
    """Mutations: stage 1 reduces in backward or forwards; stage 2 reduces after it, or keeps whole
    gradients; a unit freed after its gradients are reduced, or not in forward; the last unit not
    gathered again; units updated before they are reduced; stage 0 reduces in each microbatch."""
    n, units = world.world_size, len(SIZES)
    moves = list(STAGES[stage](units, microbatches))
    pictures = follow_moves(stage, units, microbatches)
    flags = 4 if stage == 0 else 0
    wanted = [
        (type(move).__name__, 4 * SIZES[move.unit] + flags)
        for move in moves
        if isinstance(move, (AllReduce, AllGather))
    ]
    every = world.run(watched, stage, microbatches)
    for points, collectives in every:
        assert [point[0] for point in points] == moves
        assert collectives == wanted
        for move, before, now, (_, counts, gradients, rest, _) in zip(
            moves, pictures, pictures[1:], points
        ):
            fields = "parameters", "optimizer", "gathered"
            assert counts == tuple(said(now, field, n) for field in fields), move
            own, mean = said(now, "own", n), said(now, "gradients", n)
            averaged = flags * sum(has.gradients == WHOLE for has in now)
            if stage < 3:
                assert gradients == own + mean + averaged, move
            else:  # whole gradients are on their way to the shards: nobody's .grad
                assert gradients == mean, move
                rest -= own
            # what is added is there beside the sum
            adds = stage == 0 and isinstance(move, Backward) and before[move.unit].own
            assert 0 <= rest <= SMALL + (4 * SIZES[move.unit] if adds else 0), (move, rest)
    if stage < 3:
        for number, now in enumerate(pictures[1:]):
            for unit, has in enumerate(now):
                values = {points[number][4][unit] for points, _ in every}
                assert (len(values) > 1) == has.old, (moves[number], unit)
