"""Schedules: accepted by PyTorch's validator, ordered as Megatron-Core orders them, refused with a
picture where they are wrong; simulated by rules that a schedule must obey."""

import json
import subprocess
import sys
from collections import Counter
from itertools import accumulate, product

import pytest
from night import at_night
from pages import chapter
from told import from_told

from shardlab.pipelines.schedule_checks import picture
from shardlab.pipelines.schedules import (
    SCHEDULES,
    Action,
    InvalidSchedule,
    Kind,
    interleaved,
    one_f_one_b,
    schedule,
    zero_bubble_h1,
    zero_bubble_h2,
)
from shardlab.pipelines.simulation import (
    Costs,
    Deadlock,
    in_flight,
    simulate,
    validate_schedule,
)

QUICK = [(p, m) for p in (2, 3, 8) for m in (1, 2, 3, 8, 16)]
REST = [(p, m) for p in range(2, 9) for m in range(1, 33) if (p, m) not in QUICK]


def every_schedule(ranks, microbatches):
    """(what it is, its lists, stages) of each schedule that there is for these numbers."""
    for name in SCHEDULES:
        if name != "interleaved 1F1B":
            yield name, schedule(name, ranks, microbatches), ranks
        elif microbatches % ranks == 0:
            for chunks in (1, 2, 3):
                plan = schedule(name, ranks, microbatches, stages_per_rank=chunks)
                yield f"{name}, {chunks}", plan, chunks * ranks


def accepted_by_pytorch(plan, stages, microbatches):
    from torch.distributed.pipelining import schedules as peer

    kinds = {Kind.FORWARD: peer.F, Kind.BACKWARD: peer.B, Kind.INPUT: peer.I, Kind.WEIGHT: peer.W}
    actions = {
        rank: [peer._Action(a.stage, kinds[a.kind], a.microbatch) for a in own]
        for rank, own in enumerate(plan)
    }
    return peer._validate_schedule(actions, len(plan), stages, microbatches)


@pytest.mark.parametrize("sizes", [QUICK, *at_night((REST,))], ids=["some", "every"])
def test_pytorch_accepts_every_schedule(sizes):
    """And no rank waits forever. Must catch: a warm-up of one more forward than there are
    microbatches; W before its I; a stage of the interleaved schedule on two ranks; a size for which
    a schedule is wrong, as where the ranks do not divide the microbatches."""
    for ranks, microbatches in sizes:
        for name, plan, stages in every_schedule(ranks, microbatches):
            homes = accepted_by_pytorch(plan, stages, microbatches)
            assert homes == {stage: stage % ranks for stage in range(stages)}, (name, ranks)
            validate_schedule(plan, microbatches)  # and whether the ranks get through


# --- the order of interleaving --------------------------------------------------------------------


def table(ranks, microbatches, chunks):
    """The virtual microbatches in order, as (microbatch, chunk): the rule of Megatron-LM, written
    here as its paper states it. Number k belongs to the group k // (p v); within a group the first
    p are of chunk 0, the next p of chunk 1."""
    of_group = ranks * chunks
    return [
        (k // of_group * ranks + k % ranks, k % of_group // ranks)
        for k in range(microbatches * chunks)
    ]


def interleaved_sizes():
    return [
        (p, n * p, v) for p, n, v in product((2, 3, 4, 8), (1, 2, 3), (1, 2, 3, 4)) if n * p <= 32
    ]


def assert_ordered_as(table_of):
    for ranks, microbatches, chunks in interleaved_sizes():
        want = table_of(ranks, microbatches, chunks)
        for rank, own in enumerate(interleaved(ranks, microbatches, chunks)):
            forwards = [(a.microbatch, a.stage // ranks) for a in own if a.kind is Kind.FORWARD]
            backwards = [(a.microbatch, a.stage // ranks) for a in own if a.kind is Kind.BACKWARD]
            assert forwards == want
            assert backwards == [(microbatch, chunks - 1 - chunk) for microbatch, chunk in want]
            warm = next(n for n, action in enumerate(own) if action.kind is Kind.BACKWARD)
            total = microbatches * chunks
            want_warm = min(total, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
            assert warm == min(total, want_warm + 1)  # a pair begins with its forward


def test_interleaved_takes_the_chunks_in_groups():
    """Must catch: groups of v instead of p microbatches; backward through the chunks in the order
    of forward; a warm-up that grows by one a rank instead of by two."""
    assert_ordered_as(table)


TABLES = """
import json, sys
from megatron.core.pipeline_parallel.schedules import get_schedule_table
sizes = json.loads(sys.argv[1])
print(json.dumps([get_schedule_table(m, v, p) for p, m, v in sizes]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 14),
    reason="megatron-core has wheels for Linux alone, up to Python 3.13",
)
def test_interleaved_is_ordered_as_megatron_core_orders_it():
    """Must catch: what the test above would miss if its rule were wrong."""
    sizes = interleaved_sizes()
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TABLES, json.dumps(sizes)],  # no Transformer Engine
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    tables = json.loads(ran.stdout.splitlines()[-1])
    found = {size: [tuple(row) for row in table] for size, table in zip(sizes, tables)}
    assert_ordered_as(lambda p, m, v: found[p, m, v])


# --- what is refused ------------------------------------------------------------------------------


def changed(change):
    plan = one_f_one_b(3, 4)
    change(plan)
    return plan


def swap(rank, one, other):
    def change(plan):
        plan[rank][one], plan[rank][other] = plan[rank][other], plan[rank][one]

    return change


@from_told("change, cell, words")
def test_a_wrong_list_is_shown_with_its_bad_cell(change, cell, words):
    """Must catch: each of these lists accepted; another cell marked than the one that is wrong."""
    with pytest.raises(InvalidSchedule) as caught:
        validate_schedule(changed(change), 4)
    said = str(caught.value)
    assert words in said and cell in said
    assert said.count(">") == (1 if ">" in cell else 0)


def test_a_deadlock_says_who_waits_for_whom():
    """Rank 0 does its first backward before its second forward, for which rank 1 waits.

    Must catch: the wrong action named; a rank that is not stuck; a loop without an end."""
    plan = one_f_one_b(3, 4)
    plan[0][1:4] = plan[0][3], plan[0][1], plan[0][2]
    with pytest.raises(Deadlock) as caught:
        validate_schedule(plan, 4)
    F, B = Kind.FORWARD, Kind.BACKWARD
    assert caught.value.waits == {
        0: (Action(0, B, 0), {Action(1, B, 0): 1}),
        1: (Action(1, F, 1), {Action(0, F, 1): 0}),
        2: (Action(2, F, 1), {Action(1, F, 1): 1}),
    }
    lines = str(caught.value).splitlines()
    assert "rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1" in lines[0]
    assert lines[1].startswith("rank 0 | 0F0 >0B0< 0F1 ")


# --- the simulation -------------------------------------------------------------------------------


def test_the_simulation_obeys_its_rules():
    """Must catch: a message of which the time is left out, or paid between stages of one rank; a
    link that carries two at a time; an action that begins late."""
    costs = Costs(forward=[3, 5, 2, 4, 1, 6], input=[2] * 6, weight=[4, 1, 1, 1, 1, 3], transfer=7)
    for plan in (interleaved(3, 6, 2), interleaved(2, 4, 3), interleaved(1, 4, 2)):
        home = {action.stage: rank for rank, own in enumerate(plan) for action in own}
        timeline = simulate(plan, costs)
        at = {span.action: span for own in timeline.spans for span in own}
        assert [[span.action for span in own] for own in timeline.spans] == plan
        busy = {}  # (from, to) -> when the messages on this link have arrived
        arrives = {}
        for span in sorted(at.values(), key=lambda span: span.end):
            stage, kind, microbatch = span.action
            to = stage + (1 if kind is Kind.FORWARD else -1)
            if to in home:
                link = home[stage], home[to]
                away = link[0] != link[1]
                leaves = max([span.end, *busy.get(link, [])]) if away else span.end
                arrives[to, kind, microbatch] = leaves + (7 if away else 0)
                busy.setdefault(link, []).append(arrives[to, kind, microbatch])
        for own in timeline.spans:
            for before, span in zip([None, *own], own):
                earliest = [before.end if before else 0]
                if tuple(span.action) in arrives:
                    earliest.append(arrives[tuple(span.action)])
                assert span.begin == max(earliest)
                assert span.end - span.begin == costs.of(span.action)


def test_one_forward_too_few_costs_time_and_one_too_many_memory():
    """33 becomes 54. Must catch: a simulation in which a rank does not wait for its neighbour's
    answer."""
    from shardlab.pipelines.schedules import with_warm_up

    def with_more(more):
        return with_warm_up(4, 8, lambda rank: max(0, 3 - rank + more))

    seconds = {more: simulate(with_more(more)).seconds for more in (-1, 0, 1)}
    assert seconds == {-1: 54, 0: 33, 1: 33}
    assert [in_flight(with_more(more)) for more in (0, 1)] == [[4, 3, 2, 1], [5, 4, 3, 2]]


def test_the_idle_time_of_h2_is_between_steps():
    """Must catch: idle time counted from the step's begin where it is the rank's own, and back."""
    one, two = zero_bubble_h1(4, 8), zero_bubble_h2(4, 8)
    assert simulate(two).idle_of_rank == [0, 0, 0, 0]
    assert simulate(two).idle_of_step == simulate(one).idle_of_step == [3, 3, 3, 3]
    later = lambda action, step: action._replace(microbatch=action.microbatch + 8 * step)
    five = lambda plan: [[later(a, step) for step in range(5) for a in own] for own in plan]
    assert [simulate(five(plan)).seconds for plan in (one, two)] == [5 * 24 + 5 * 3, 5 * 24 + 3]


def test_the_picture():
    """Must catch: columns that are not under each other once a number has two digits."""
    rows = picture(one_f_one_b(2, 11), {(1, 20)}).splitlines()
    assert rows[1].endswith(">1F10< 1B10")
    assert rows[0].index("0F1 ") == rows[1].index("1B0 ")
    assert Counter(row.count(">") for row in rows) == {0: 1, 1: 1}


def held_at_the_peak(lists, whole, halved):
    """The most that each rank holds, where a microbatch counts `whole` until its I, and `halved`
    until its W."""
    weight = {Kind.FORWARD: whole, Kind.INPUT: halved - whole, Kind.WEIGHT: -halved}
    return [max(accumulate(weight[action.kind] for action in own)) for own in lists]


def test_activations_that_h1_holds_on_each_rank():
    """The page's table, by what test_split_backward measures. Must catch: a schedule in which rank
    r has another number of microbatches than r + 1 between I and W."""
    lists = zero_bubble_h1(4, 8)
    ours, theirs = (held_at_the_peak(lists, 32, halved) for halved in (34, 56))
    assert ours == [130, 132, 134, 136] and theirs == [152, 176, 200, 224]
    page = chapter("pipelines")
    for name, halved, found in (("this book", 34, ours), ("PyTorch", 56, theirs)):
        row = f"| {name}, $32(3 - r) + {halved}(r + 1)$ | {' | '.join(map(str, found))} |"
        assert row in page
