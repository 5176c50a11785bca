"""Wrong solutions of the assignments: each misconception gets its sentence. `wrong_solutions.md` of
a topic has them as edits of the right one: below a heading a trial, its group and a part of the
sentence, then `old => new`, or lines with - and + between lines that stay."""

import inspect
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from graded import check_sentence, mutated, results, skeleton, text_of
from pages import ROOT

from coursekit.exercises.assignments import assignment
from shardlab.context_parallel import core_ring
from shardlab.data_loading import core as data_loading
from shardlab.data_loading import core_packing
from shardlab.data_parallel import core as data_parallel
from shardlab.experts import core_parallel
from shardlab.kernels import attention
from shardlab.mixed_precision import core as mixed_precision
from shardlab.pipelines import core as pipelines
from shardlab.pipelines import schedules
from shardlab.recompute import core as recompute
from shardlab.tensor_parallel import core as tensor_parallel
from shardlab.zero import core, core_stage3

pytestmark = pytest.mark.ranks
HERE = Path(__file__).resolve().parent
ANOTHER = (HERE / "collectives/another_solution.py").read_text("utf-8")
IN_WORDS = """
from assignments.pipelines.trials_given import actions_of, in_words
from shardlab.pipelines.schedule_checks import check_order

gpipe, one_f_one_b, interleaved = map(in_words, (gpipe, one_f_one_b, interleaved))


def check_schedule(words, microbatches):
    plan = actions_of(words)
    validate_schedule(plan, microbatches)
    check_order_of_messages(plan)


class PipelineOfWords(Pipeline):
    def __init__(self, layers, schedule, example, loss, group=None):
        super().__init__(layers, actions_of(schedule), example, loss, group)


Pipeline = PipelineOfWords
"""
AROUND_THE_RING = """
from shardlab.context_parallel.core import Context

zigzag, merge = places_in_zigzag, merged


def ring_attention(q, k, v, group=None):
    if q.shape[2] % 2:
        raise ValueError(f"{q.shape[2]} tokens")
    return RingOfKeys.apply(q, k, v, Blocks(Context(group)))
"""


def of_reference(topic: str, *names: str) -> str:
    """The source of what a learner builds, as the book has it."""
    reference = assignment(topic).reference
    return "\n\n".join(inspect.getsource(reference[name]) for name in names)


def flash_attention() -> str:
    """Its kernels, called as they are: PyTorch knows them as operators already."""
    kernels = text_of(attention).partition("def _keep")[0].replace("@operator\n", "")
    wrapped = of_reference("kernels", "FlashAttention").replace("OfTheShelf", "FlashAttention")
    return f"{kernels}TILE = 16\n\n\n{wrapped}"


SOLUTIONS = {
    "activation_checkpointing": text_of(recompute),
    "collectives": ANOTHER,
    "data_parallelism": text_of(data_parallel),
    "feeding_the_gpu": text_of(data_loading, core_packing),
    "kernels": flash_attention(),
    "long_sequences": text_of(core_ring)
    + of_reference("long_sequences", "zigzag", "merge")
    + AROUND_THE_RING,
    "mixed_precision": text_of(mixed_precision),
    "mixture_of_experts": text_of(core_parallel) + of_reference("mixture_of_experts", "route"),
    "pipelines": text_of(schedules) + text_of(pipelines) + IN_WORDS,
    "tensor_parallelism": text_of(tensor_parallel),
    "where_the_time_goes": inspect.getsource(
        inspect.getmodule(assignment("where_the_time_goes").reference["clip"])
    ),
    "zero": text_of(core, core_stage3),
}


class Wrong(NamedTuple):
    name: str
    work: str
    group: str
    sentence: str
    changes: list[str]  # each old text, then its new one


def wrong_in(text: str) -> list[Wrong]:
    found = []
    for part in text.split("\n## ")[1:]:
        name, said, *edits = part.rstrip().split("\n\n")
        work, group, sentence = re.fullmatch(r"(\w+), (\w+):(?: (.*))?", said).groups("")
        found.append(Wrong(name, work, group, sentence, sum(map(change, edits), [])))
    return found


def change(edit: str) -> list[str]:
    lines = [line[4:] for line in edit.split("\n")]
    if " =>" in lines[0]:
        old, _, new = f"{lines[0]} ".partition(" => ")
        return [old, new.removesuffix(" ")]
    sides = ([line[1:] for line in lines if not line.startswith(other)] for other in "+-")
    return ["".join(f"{line}\n" for line in side) for side in sides]


WRONG = [
    pytest.param(topic, wrong, id=f"{topic}-{wrong.name}", marks=pytest.mark.xdist_group(topic))
    for topic in sorted(path.parent.name for path in ROOT.glob("assignments/*/trials.py"))
    for wrong in wrong_in((HERE / topic / "wrong_solutions.md").read_text("utf-8"))
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("topic, wrong", WRONG)
def test_a_misconception_gets_its_sentence(worlds, topic, wrong):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    case = wrong[1:3] + (wrong.changes, wrong.sentence)
    check_sentence(worlds(assignment(topic).world_size), topic, SOLUTIONS[topic], case)


def test_edits_are_read_as_they_are_written():
    """Must catch: an edit that changes nothing, one of text that the solution no longer has or that
    leaves no Python; a line lost or joined to its neighbour."""
    text = (
        "# A\n\n## b\n\nt, bytes: no\n\n    x = 1 => x = 2\n\n     a\n    -b\n    +c\n\n    y =>\n"
    )
    [found] = wrong_in(text)
    assert found == ("b", "t", "bytes", "no", ["x = 1", "x = 2", "a\nb\n", "a\nc\n", "y", ""])
    for topic, wrong in (row.values for row in WRONG):
        olds, news = wrong.changes[::2], wrong.changes[1::2]
        assert olds and not set(zip(olds, news)) & {(old, old) for old in olds}, (topic, wrong.name)
        compile(mutated(SOLUTIONS[topic], *wrong.changes), f"{topic}, {wrong.name}", "exec")


def test_sends_that_wait_for_each_other(worlds):
    """Must catch: a trial that waits forever where two ranks send before either receives."""
    change = (
        "return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))",
        "return dist.send(tensor, self.ranks[rank], group=group)",
    )
    wrong = ("every_gradient", "parity", change, "wait")
    check_sentence(worlds(4), "pipelines", SOLUTIONS["pipelines"], wrong, trial_seconds=3.0)


def test_another_solution_passes(worlds):
    """Must catch: a trial that refuses a right solution, such as one that wants the reference's
    calls and not only its bytes."""
    found = results(worlds(4), "collectives", ANOTHER)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, one that raises a traceback, and a part that is
    tried again although it is not written."""
    found = results(worlds(4), "collectives", skeleton("collectives"))
    assert {r.said for r in found} == {"not yet"}
    first = {r.trial.part: r.sentence for r in reversed(found)}
    for part, sentence in first.items():
        assert f"not written yet: {part} (collectives.py, line" in sentence
    assert sum("not tried" in r.sentence for r in found) == len(found) - len(first)


SLOW = {
    "train_and_log": "12 values were read for 12 steps",
    "clip": "operations for 4 parameters",
    "positions": "operations for 3 rows",
    "average": "bytes at one time",
    "batch": "4 reads for 4 windows",
}


def test_slow_programs_are_right_and_found(worlds):
    """Must catch: a slow program with other numbers than the mended one; a trial that lets it pass,
    on a fast machine or a slow one."""
    topic = "where_the_time_goes"
    source = skeleton(topic) + "".join(f"\n{name} = slow_{name}" for name in SLOW)
    said = {}
    for result in results(worlds(1), topic, source):
        right = result.trial.group == "parity"
        assert result.said == ("right" if right else "not yet"), result.sentence
        if result.trial.group == "bytes":
            said[result.trial.part] = result.sentence
    assert all(SLOW[part] in said[part] for part in SLOW), said
