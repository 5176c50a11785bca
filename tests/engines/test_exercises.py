"""Predictions stay as they were made; checks know every misconception they were given, and
speak in whole sentences."""

import dataclasses
import importlib
import json
import math
import multiprocessing
import os
import re  # noqa: F401 (told.md names it)
import sys  # noqa: F401 (told.md names it)
import tempfile
import threading
import time
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from refusals import begins
from told import from_told

from coursekit import topics
from coursekit.exercises import checker
from coursekit.exercises.checker import Exercise, Misconception, OfRanks, check, judge
from coursekit.exercises.decisions import decisions_of
from coursekit.exercises.going_on import gives_numbers, must_be_right
from coursekit.exercises.hints import hint
from coursekit.exercises.numbers import plain_numbers
from coursekit.exercises.predictions import NotYet, Predictions
from coursekit.machine.apart import PRINTED_CHARACTERS, apart
from coursekit.topics.hardware.exercises import Queue, rate_above_the_roof
from coursekit.topics.where_the_memory_goes.exercises import memory_that_grows
from coursekit.topics.why_one_gpu.exercises import bytes_behind_tensors
from coursekit.topics.zero.exercises import bounds_of_a_shard
from ranklab.ranks.output import Progress


def all_exercises():
    for module in topics.modules("exercises"):
        for name, value in vars(module).items():
            if isinstance(value, Exercise):
                marks = [pytest.mark.slow] * (value is memory_that_grows)
                yield pytest.param(value, id=f"{module.__name__.split('.')[2]}.{name}", marks=marks)


@pytest.fixture
def tried_once(monkeypatch):
    """Each judgement compares with all wrong solutions of the exercise: they answer a case once."""
    tried, answers = Exercise.tried, {}

    def remembered(self, solution, number):
        asked = id(self), solution, number
        if asked not in answers:
            answers[asked] = tried(self, solution, number)
        return answers[asked]

    monkeypatch.setattr(Exercise, "tried", remembered)


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("tried_once")
@pytest.mark.parametrize("exercise", list(all_exercises()))
def test_each_wrong_solution_gets_its_own_sentence(exercise):
    """Must catch: a case list on which a wrong solution is right by luck, or two misconceptions
    that cannot be told apart."""
    assert exercise.properties or len(exercise.misconceptions) >= 2
    assert len(exercise.cases) >= 2 or exercise.of_a_value  # one value is found, whatever it is
    for misconception in exercise.misconceptions:
        verdict = judge(exercise, misconception.solution)
        assert not verdict and verdict.sentence == misconception.sentence


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("exercise", list(all_exercises()))
def test_the_reference_is_right_in_the_process_apart(exercise):
    """Must catch: a reference that raises in a fresh process, where this one has imported or set
    what it needs; one that gives another answer the second time."""
    right = exercise.reference() if exercise.of_a_value else exercise.reference
    assert check(exercise, right, PATIENT_SECONDS)


@pytest.mark.slow
def test_tensors_of_a_case_share_their_storage_in_the_process_apart():
    """Must catch: cases that travel by plain pickle, so that a solution which counts a storage
    twice is right."""
    twice = next(
        wrong for wrong in bytes_behind_tensors.misconceptions if "twice" in wrong.sentence
    )
    assert check(bytes_behind_tensors, twice.solution).sentence == twice.sentence


PATIENT_SECONDS = 900.0  # on a machine that has a load of forty, an answer takes more than 30
TWICE = Exercise(
    "twice",
    lambda a: 2 * a,
    (dict(a=3), dict(a=1_000)),
    (
        Misconception(lambda a: a * a, "that is the square."),
        Misconception(lambda a: 3 * a, "that is thrice."),
    ),
    "twice it is.",
)


def uses_up(obj):
    found = 0
    while obj:
        found += len(obj.pop())
    return found


def raises(start):
    raise ValueError("one line\nand many more")


class Kept(NamedTuple):
    steps_taken: int
    losses: list


def my_loop(a):
    return Kept(3, [1, [2, 4]])


def my_plan(n):
    return "step 2 sends nothing."


class Made(NamedTuple):
    output: list
    gradient_of_x: list


def on_two_ranks(solution):
    return OfRanks(Made([1.0, 2.0], [solution(rank), 4.0]) for rank in range(2))


def of_topic(name):
    topic, exercise = name.split(".")
    return getattr(importlib.import_module(f"coursekit.topics.{topic}.exercises"), exercise)


LISTS = [
    "### each alone",
    "same(found, one + other)\n:   the sum.",
    "same(found, max(one, other))\n:   the larger one.",
]
ONE_AND_TWO = (dict(n=1), dict(n=2))
OTHERS = (
    Exercise(
        "count", lambda obj: len(obj), (dict(obj=["a"]), dict(obj=["a", "b"])), (), "as many."
    ),
    Exercise("long", lambda a: [0] * a, (dict(a=999), dict(a=1)), (), "long."),
    Exercise("words", lambda: "a" * 999, ({},), (), "long."),
    Exercise("pair", lambda n: (n, 2.0 * n), ONE_AND_TWO, (), "two."),
    Exercise("twelve", lambda: 12, ({},), (), "a dozen."),
    Exercise("train", lambda a: Kept(a, [1, [2, 3]]), (dict(a=3),), (), "kept."),
    Exercise("plan", lambda n: "all is well.", ONE_AND_TWO[1:], (), "so it is."),
    Exercise("plan with a flag", lambda n: ("all is well.", True), ONE_AND_TWO[1:], (), "it is."),
    Exercise("half", lambda rank: rank / 2, ({},), (), "so it is.", answer=on_two_ranks),
    Exercise(
        "halves",
        lambda a: (a // 2, a - a // 2),
        (dict(a=5), dict(a=8)),
        (),
        "both are a.",
        answer=lambda solution, a: [half + 0 for half in solution(a)],
    ),
    Exercise(
        "bytes of both ranks",
        lambda: [8, 16],
        ({},),
        (Misconception(lambda: [8, 8], "both sent the same."),),
        "so it is.",
        of_a_value=True,
    ),
    Exercise(
        "fits",
        lambda n: n,
        ONE_AND_TWO,
        (Misconception(lambda n: None if n > 1 else n, "where none fits, say so."),),
        "so it is.",
    ),
    Exercise(
        "letters",
        lambda start: start + "b",
        (dict(start="a"), dict(start="aa")),
        (Misconception(lambda start: "", "that is nothing."),),
        "as many.",
        ("one letter", "two"),
        lambda solution, start: len(solution(start)),
    ),
    Exercise(
        "product",
        lambda one, other: one * other,
        (dict(one=1, other=2), dict(one=3, other=3), dict(one=0, other=4)),
        (),
        "so it is.",
        properties=decisions_of(LISTS, "coursekit.exercises.answers", "a test").lists,
    ),
    dataclasses.replace(
        TWICE,
        name="times",
        properties=(lambda found, right, a: f"{found / right} times that.",),
    ),
)
NAMED = {one.name: one for one in (TWICE, *OTHERS)}


@from_told("name, solution, said")
def test_a_verdict_says_what_is_wrong(name, solution, said):
    """Must catch: an error of the reader's that comes out as a traceback, a blank taken for an
    answer, 6 and 6.0 or True and 1 mixed up; cases that a solution uses up; an array compared as
    one truth value; all of a long answer printed; a raw tuple in a sentence, or the exercise's name
    instead of the reader's; a formula named for one case; the answer of a task; "returns nothing"
    where the mistake is known; an error of this package's making; NumPy's number refused; a call
    that no reader wrote, or a None told as a function's, of a value that a cell found;
    `_handed_back` that is not asked, so that an error of the check's own answer is told as the
    solution's, or a solution that raises itself told as one that returned."""
    found = repr(judge(NAMED.get(name) or of_topic(name), solution))
    assert begins(found, said) and len(found) < 700, found


@pytest.mark.slow
def test_a_cell_goes_on_with_right_answers_alone():
    """Must catch: ranks that are given a blank, or a function that would hang."""
    must_be_right(TWICE, lambda a: 2 * a)
    for wrong in (lambda a: ..., lambda a: a * a, 6):
        with pytest.raises(NotYet, match="twice is not right yet"):
            must_be_right(TWICE, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("made", (lambda a: torch.tensor([2.0 * a]), lambda a: np.int64(2 * a)))
def test_a_cell_goes_on_with_plain_numbers(made):
    """Must catch: the tensor or NumPy's number that the reader's function gave, which later cells
    cannot format."""
    found = gives_numbers(TWICE, made)(3)
    assert type(found) in (int, float) and found == 6
    assert plain_numbers(([made(1)], (made(2), "x"))) == ([2], (4, "x"))


@pytest.mark.slow
def test_a_check_ends():
    """Mutations: a loop that has no end left to itself; a reader's `except Exception` that keeps
    the end away; the limit that goes on after the check, into the next cell; the exercise's name,
    which the reader has not written, instead of the function's."""

    def forever(a):
        while True:
            try:
                for _ in range(10**6):
                    pass
            except Exception:
                pass

    assert check(TWICE, TWICE.reference)  # the fork server runs
    late = "it had not ended after 0.3 s."
    assert repr(check(TWICE, forever, seconds=0.3)) == f"not yet: forever: {late}"
    # where there is no process to be had
    assert repr(judge(TWICE, forever, seconds=0.3)) == f"not yet: forever(a=3): {late}"
    assert judge(TWICE, TWICE.reference, seconds=0.2)
    time.sleep(0.4)  # nothing comes


class LongOnItsWay:
    def __reduce__(self):
        return time.sleep, (3,)


@pytest.mark.slow
def test_the_limit_of_a_process_apart_begins_with_the_work(monkeypatch):
    """Must catch: the way there counted, so that a machine that imports torch for half a minute
    gets no verdict; a first check that says nothing for so long; a line that stays."""
    said = []
    monkeypatch.setattr(Progress, "draw", lambda _, text: said.append(text))
    assert apart(repr, LongOnItsWay(), seconds=2) == "None"
    assert said == ["PyTorch is imported once more, for all checks", ""]


class Silent(Exception):
    """Has no text."""

    def __str__(self):
        raise ValueError


def nested():
    found = []
    for _ in range(10**5):
        found = [found]
    return found


@from_told("solution, said")
@pytest.mark.slow
def test_nothing_that_a_reader_writes_makes_check_raise_or_hang(solution, said):
    """Must catch: loops in C, which neither a thread nor a signal stops; exits that only
    BaseException catches; values that cannot be printed or compared."""
    seconds = 0.3 if "0.3 s" in said else PATIENT_SECONDS
    assert said in check(TWICE, solution, seconds).sentence
    assert not [child for child in multiprocessing.active_children() if "rank" not in child.name]


def test_a_check_that_is_stopped_is_one_sentence(monkeypatch):
    """Must catch: a traceback of the connection to the other process; a stop that is a verdict."""
    monkeypatch.setattr(checker, "apart", lambda *_, **__: throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt) as raised:
        check(TWICE, TWICE.reference)
    assert raised.value._render_traceback_() == [
        "CheckInterrupted: the check of twice was stopped before it had a verdict: run the cell"
        " again."
    ]


def swallow_all():
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def throw(error):
    raise error


@pytest.mark.slow
def test_what_a_check_prints_is_shown(capsys):
    """Must catch: prints of the reader's function that stay in the other process."""
    assert check(TWICE, lambda a: print("here") or 2 * a)
    assert capsys.readouterr().out == "here\n" * 2


def test_what_is_printed_without_end_takes_no_memory(capfd):
    """Must catch: all of it kept or shown, a GB in half a minute; work that waits for its pipe; a
    program's output, or stderr, on the kernel's own descriptors."""
    mark = os.urandom(4).hex()

    def prints():
        for number in (1, 2):
            os.write(number, mark.encode())
            for _ in range(100):
                os.write(number, b"x" * 10**5)

    apart(prints, seconds=60)
    for shown in capfd.readouterr():
        assert shown.rstrip("x") == mark and len(shown) == PRINTED_CHARACTERS


def test_a_queue_hands_over_and_waits():
    """Must catch: a launch that waits until its work is done, which has no bug to hunt; a
    synchronize that does not wait for all of it; a rate that was returned without a look at the
    clock."""
    gate, done = threading.Event(), []
    queue = Queue(lambda: gate.wait(5) and done.append(len(done)), torch.device("cpu"))
    queue.synchronize()  # nothing was handed over: nothing to wait for
    for _ in range(3):
        queue.launch()
    assert done == []
    gate.set()
    queue.synchronize()
    assert done == [0, 1, 2] and queue.clock() <= queue.clock()
    said = judge(rate_above_the_roof, lambda queue, flops: 1.0).sentence
    assert "it never looked at queue.clock()" in said


def locked(predictions, name):
    return {row[0]: row[1] for row in predictions.summary().rows}[name]


def test_the_first_prediction_stays(tmp_path, capsys):
    """Must catch: a cell run again after the reveal that overwrites the prediction; a new kernel
    that has forgotten it."""
    predictions = Predictions("01-lab", tmp_path)
    predictions.lock("peak", 1_000)
    Predictions("01-lab", tmp_path).lock("peak", 2_000)
    assert locked(predictions, "peak") == locked(Predictions("01-lab", tmp_path), "peak") == "1,000"
    assert "peak = 1,000 (locked; not 2,000)" in capsys.readouterr().out
    assert json.loads((tmp_path / "01-lab.predictions.json").read_text()) == {"peak": 1000}
    predictions.forget("peak")
    Predictions("01-lab", tmp_path).lock("peak", 2_000)
    assert locked(Predictions("01-lab", tmp_path), "peak") == "2,000"


def test_predict_first(tmp_path):
    """Must catch: a comparison without a prediction; the dots of the blank, a text or a NaN taken
    for a number; twenty lines of this package above the one sentence."""
    predictions = Predictions("01-lab", tmp_path)
    assert predictions.summary().rows[0][0] == "nothing predicted yet"
    lock, early = predictions.lock, "peak was not predicted yet"
    lock("gradients", 0)
    predictions.locked("gradients")
    lock("percent longer", -3)
    lock("weight after 300 steps", -0.17)  # a listed slip
    lock("locked", 1)
    late = "locked was not measured yet: run the cell that predicts it to its end, then this one."
    finite, negative = (
        "a prediction is one finite number",
        "= -3: a count, a size or a share is not",
    )
    for call, arguments, error, words in (
        (predictions.compare, ("peak", 5), LookupError, early),
        (predictions.compare, ({"gradients": 1, "peak": 2},), LookupError, early),
        (predictions.measured, ("peak",), LookupError, early),
        (predictions.locked, ("gradients", "peak"), LookupError, early),
        (Predictions("01-lab", tmp_path).measured, ("locked",), LookupError, late),
        *((lock, ("peak", wrong), ValueError, finite) for wrong in ("12", math.nan, True, None)),
        (lock, ("locked", "two"), ValueError, f"locked = 'two': {finite}"),
        (lock, ("messages", -3), ValueError, f"messages {negative}"),
        (lock, ("GPipe, idle percent", -3), ValueError, f"GPipe, idle percent {negative}"),
        (lock, ("peak", ...), ValueError, "replace the dots with your number"),
    ):
        with pytest.raises(error, match=words) as caught:
            call(*arguments)
    # no lines of this package
    said = "NoNumber: peak: replace the dots with your number."
    assert caught.value._render_traceback_() == [said]
    predictions.path.unlink()
    assert not list(tmp_path.iterdir())  # nothing was kept


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch, capsys):
    """The lab goes on, and says once that a new kernel will not know. Mutations: the error let
    through; the prediction not kept."""
    refuses = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuses)
    predictions = Predictions("01-lab", tmp_path)
    predictions.lock("peak", 500)
    predictions.lock("peak", 700)
    predictions.lock("gradients", 7)
    said = capsys.readouterr().out
    assert locked(predictions, "peak") == "500" and "peak = 500 (locked; not 700)" in said
    words = "cannot be written (Permission denied): predictions last as long as this kernel."
    assert said.count(words) == 1


def test_predicted_beside_measured(tmp_path):
    """Must catch: the ratio upside down, a division by zero, a prediction missing from the
    summary."""
    predictions = Predictions("01-lab", tmp_path)
    predictions.lock("peak", 500)
    predictions.lock("gradients", 7)
    assert predictions.compare("peak", 1_000).rows == [["peak", "500", "1,000", "0.5"]]
    assert predictions.compare("gradients", 0).rows == [["gradients", "7", "0", "–"]]
    assert (predictions.measured("peak"), predictions.measured("gradients")) == (1_000, 0)
    predictions.lock("unmeasured", 1)
    assert [row[0] for row in predictions.summary().rows] == ["peak", "gradients", "unmeasured"]
    assert predictions.summary().rows[2][2] == "–"


def test_the_last_column_says_what_a_gpu_showed(tmp_path):
    """Must catch: other words than the book's for what was not recorded; a recording shown beside
    another prediction."""
    predictions = Predictions("01-lab", tmp_path)
    predictions.lock("peak", 500)
    predictions.lock("gradients", 7)
    table = predictions.summary({"gradients": "0 bytes on NVIDIA H200, 2026-11-21"})
    assert table.heads[-1] == "recorded on a GPU"
    assert [row[-1] for row in table.rows] == [
        "not yet recorded on a GPU",
        "0 bytes on NVIDIA H200, 2026-11-21",
    ]


def test_a_damaged_file_is_refused_and_kept(tmp_path):
    """Must catch: a damaged file taken as no predictions, and overwritten by the next one."""
    path = tmp_path / "01-lab.predictions.json"
    words = f"{path.name} is damaged .* mend it, or delete it and predict again"
    for text in ('{"peak": 10', '{"peak": "ten"}', '{"peak": ' + "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            Predictions("01-lab", tmp_path)
        assert path.read_text() == text


def test_a_number_is_a_number_whoever_made_it(tmp_path):
    """Must catch: a prediction that is NumPy's number or a tensor of one element refused."""
    predictions = Predictions("01-lab", tmp_path)
    predictions.lock("numpy", np.int64(3))
    predictions.lock("tensor", torch.tensor(2.5))
    assert (locked(predictions, "numpy"), locked(predictions, "tensor")) == ("3", "2.5")
    assert locked(Predictions("01-lab", tmp_path), "numpy") == "3"  # written as a number
    with pytest.raises(ValueError, match="one finite number. Write it without the quotes"):
        predictions.lock("text", "1e9")


def test_a_hint_comes_in_three_steps(monkeypatch):
    """Must catch: the last hint first; the skeleton of a lab's solution not found; a hint without
    the place of the solution; a function taken for an exercise."""
    monkeypatch.setattr("coursekit.exercises.hints._asked", [])
    first, half, last, again = (hint(bounds_of_a_shard) for _ in range(4))
    assert bounds_of_a_shard.hint in first and bounds_of_a_shard.right not in first
    assert "each, more = divmod(...)" in half.code and half._repr_markdown_().endswith("\n```")
    assert last == again and bounds_of_a_shard.right in last
    assert "solution is on this lab's page" in last
    assert "solution is on this lab's page" in hint(
        Exercise("unhinted", lambda: 1, (dict(),), (), "one.")
    )
    with pytest.raises(TypeError, match="give it the first argument of the check"):
        hint(len)


@pytest.mark.slow
def test_a_hint_after_a_failed_check(monkeypatch):
    """Must catch: the hint of an exercise that has passed since; an older one's, after a right
    answer, without its name; a check that fails again and does not say where help is, or says so at
    once; a forgotten argument as a traceback."""
    monkeypatch.setattr("coursekit.exercises.checker.failed", failed := [])
    monkeypatch.setattr("coursekit.exercises.hints.failed", failed)
    with pytest.raises(TypeError, match="no check has failed since this kernel started"):
        hint()
    other = dataclasses.replace(TWICE, name="other", right="the other.")
    for exercise in (TWICE, other):
        assert "hint() helps" not in repr(check(exercise, lambda a: a))
    assert "the other." in hint()
    assert repr(check(TWICE, lambda a: a)).endswith(" (hint() helps.)")
    assert "twice it is." in hint()
    assert repr(check(TWICE, lambda a: 2 * a)) == "right: twice it is."
    assert hint().startswith("other: ") and "the other." in hint()

    def my_twice(a):
        return 2 * a

    for call, said in (((my_twice,), "check(the_exercise, my_twice)"), ((TWICE,), "your_function")):
        with pytest.raises(TypeError) as caught:
            check(*call)
        (shown,) = caught.value._render_traceback_()
        assert "wants an exercise and then your function, and this call has one" in shown
        assert said in shown
