"""A training step under ZeRO as a list of moves, and what every rank has of the model after each of
them.

    list(stage_2(units=2, microbatches=1))    # [Forward(unit=0), Forward(unit=1), Backward(unit=1),
                                              # ReduceScatter(unit=1), ...]
    follow_moves(2, units=2, microbatches=1)[4]     # after four moves: of each unit, what every
    rank has

The four functions are data parallelism and the three stages. Each differs from the one before in a
few lines: these lines are ZeRO. data_parallel.py, stage1.py, stage2.py and stage3.py make these
moves in this order (tests/zero/test_zero_moves.py runs them, and compares collectives and bytes),
the card in the chapter draws them. A list of moves knows neither tensors nor ranks, so this module
needs no torch. All ranks make the same moves, each with its own shard.

A *unit* is what travels together: a bucket in stages 0 to 2, a unit of stage 3. Activations are
left out, and so are copies that exist only while a collective works on them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class HeldPart(IntEnum):
    """How much of something a rank has."""

    NOTHING = 0
    SHARD = 1  # its own: chunk r on rank r
    WHOLE = 2


NOTHING, SHARD, WHOLE = HeldPart


class Has(NamedTuple):
    """The tensors that every rank has of one unit."""

    parameters: HeldPart
    optimizer: HeldPart  # states
    own: HeldPart = NOTHING  # gradients of its own examples, which no other rank has seen
    gradients: HeldPart = NOTHING  # their mean over all ranks
    gathered: HeldPart = NOTHING  # parameters that are whole for a moment, beside the shard
    old: bool = False  # of the parameters only the own shard is updated yet


# by stage, when gradients are set to None
AT_REST = (Has(WHOLE, WHOLE), Has(WHOLE, SHARD), Has(WHOLE, SHARD), Has(SHARD, SHARD))


# --- moves: `then` says what a rank has of the unit afterwards, or raises ValueError --------------


@dataclass(frozen=True)
class ShardMove(ABC):
    unit: int | None = None  # None: all

    @abstractmethod
    def then(self, has: Has) -> Has:
        """The tensors that a rank has of the unit after the move."""


class Forward(ShardMove):
    """The unit computes."""

    def then(self, has):
        need(
            WHOLE in (has.parameters, has.gathered) and not has.old,
            "it computes with all its parameters, as they are now",
        )
        return has


class Backward(Forward):
    """Autograd adds the unit's gradients to those that the rank has of microbatches before, if it
    has."""

    def then(self, has):
        return super().then(has)._replace(own=WHOLE)


class AllReduce(ShardMove):
    """Every rank gets the mean of the unit's gradients."""

    leaves = WHOLE

    def then(self, has):
        need(has.own, "its gradients are not there")
        return has._replace(own=NOTHING, gradients=self.leaves)


class ReduceScatter(AllReduce):
    """Every rank gets its shard of the mean of the unit's gradients, adds it to the one it has, if
    it has, and frees the rest."""

    leaves = SHARD


class Update(ShardMove):
    """The optimizer changes the parameters for which the rank has states."""

    def then(self, has):
        need(
            has.gradients == has.optimizer,
            "an update takes gradients where the states are, and nowhere else",
        )
        return has._replace(old=has.parameters > has.optimizer)


class AllGather(ShardMove):
    """Every rank gets the others' shards of the unit's parameters: in their place, or for a
    moment."""

    def then(self, has):
        if has.parameters == SHARD:
            need(not has.gathered, "it is gathered already")
            return has._replace(gathered=WHOLE)
        need(has.old, "every rank has them already")
        return has._replace(old=False)


class Free(ShardMove):
    """The gathered tensors go."""

    def then(self, has):
        need(has.gathered, "it is not gathered")
        return has._replace(gathered=NOTHING)


def need(fulfilled, sentence: str):
    if not fulfilled:
        raise ValueError(sentence)


# --- data parallelism, and the three stages: each yields the moves of one step --------------------


def stage_0(units, microbatches):
    """Nothing is sharded: data parallelism."""
    for microbatch in range(microbatches):
        for unit in range(units):
            yield Forward(unit)
        for unit in reversed(range(units)):
            yield Backward(unit)
            if microbatch == microbatches - 1:
                yield AllReduce(unit)
    yield Update()


def stage_1(units, microbatches):
    """Optimizer states are sharded."""
    for _ in range(microbatches):
        for unit in range(units):
            yield Forward(unit)
        for unit in reversed(range(units)):
            yield Backward(unit)
    for unit in reversed(range(units)):
        yield ReduceScatter(unit)
    yield Update()
    for unit in range(units):
        yield AllGather(unit)


def stage_2(units, microbatches):
    """Optimizer states and gradients are sharded."""
    for _ in range(microbatches):
        for unit in range(units):
            yield Forward(unit)
        for unit in reversed(range(units)):
            yield Backward(unit)
            yield ReduceScatter(unit)
    yield Update()
    for unit in range(units):
        yield AllGather(unit)


def stage_3(units, microbatches):
    """Optimizer states, gradients and parameters are sharded."""
    for _ in range(microbatches):
        for unit in range(units):
            yield AllGather(unit)
            yield Forward(unit)
            yield Free(unit)
        for unit in reversed(range(units)):
            yield AllGather(unit)
            yield Backward(unit)
            yield Free(unit)
            yield ReduceScatter(unit)
    yield Update()


STAGES: tuple[Callable[[int, int], Iterator[ShardMove]], ...] = (stage_0, stage_1, stage_2, stage_3)


# --- what a list of moves does --------------------------------------------------------------------


def follow_moves(
    stage: int, units: int, microbatches: int, moves: Iterable[ShardMove] | None = None
) -> list[list[Has]]:
    """The tensors that every rank has of each unit before the first move and after each, from one
    step to the next.

    moves    others than the stage's own

    Raises ValueError, with the move, for one that cannot be: computing without the parameters,
    freeing what is not gathered, ...
    """
    if moves is None:
        moves = STAGES[stage](units, microbatches)
    pictures = [[AT_REST[stage]] * units]
    for number, move in enumerate(moves, 1):
        now = list(pictures[-1])
        for unit in range(units) if move.unit is None else [move.unit]:
            try:
                now[unit] = move.then(now[unit])
            except ValueError as wrong:
                raise ValueError(f"move {number}, {move}, unit {unit}: {wrong}.") from None
        pictures.append(now)
    return pictures
