"""Trials of assignments as tests.

    pytest assignments/zero --mine my_zero.py    what a learner wrote
    pytest assignments/zero                      the technique's core, and its hardened class
    pytest assignments -m bytes                  one group of trials

A trial runs on ranks, which all trials of a topic share, and fails with the sentence that
`python -m shardlab grade` says. That command shows the speeds, too.
"""

from functools import cache, partial
from pathlib import Path

import pytest

from coursekit.exercises.assignments import GROUPS, CannotGrade, assignment
from coursekit.exercises.grading import ABSENCE_SECONDS, Grader
from coursekit.exercises.grading_text import read_source, rules_broken, unwritten
from ranklab.ranks import ranks


def pytest_addoption(parser):
    parser.addoption("--mine", type=Path, metavar="FILE", help="try this file of a learner's")


def pytest_configure(config):
    # those of pyproject.toml are not in a wheel
    for mark in ("ranks", "nightly", "xdist_group", *GROUPS):
        config.addinivalue_line("markers", f"{mark}: trials of assignments")


def pytest_collect_file(file_path, parent):
    named = parent.session.isinitpath(file_path)  # then pytest makes a module of it, below
    if file_path.name == "trials.py" and not named:
        return Trials.from_parent(parent, path=file_path)


def pytest_pycollect_makemodule(module_path, parent):
    if module_path.name == "trials.py":
        return Trials.from_parent(parent, path=module_path)


class Trials(pytest.File):
    """The trials of a topic but for the speeds."""

    def collect(self):
        asked = assignment(self.path.parent.name)
        mine = self.config.getoption("mine", None)
        graders = {"mine": self.of_mine(asked, mine)} if mine else self.of_the_book(asked)
        for whose, grader in graders.items():
            for number, trial in enumerate(one for one in asked.trials if one.group != "speed"):
                name = f"{trial.work.__name__}[{whose}]"
                one = OneTrial.from_parent(self, name=name, trial=trial, grader=grader)
                if number % {"core": 2, "hardened": 6, "mine": 1}[whose]:
                    one.add_marker("nightly")  # by day their own tests say so
                yield one

    def of_mine(self, asked, path: Path) -> Grader:
        try:
            source = read_source(path)
        except CannotGrade as refused:
            raise self.CollectError(str(refused)) from None
        if broken := list(rules_broken(asked, source, str(path))):
            raise self.CollectError("\n".join(broken))
        start = partial(self.start, asked.world_size, patience_seconds=ABSENCE_SECONDS)
        return Grader(asked, source, str(path), start, todo=unwritten(source))

    def of_the_book(self, asked) -> dict[str, Grader]:
        start = cache(partial(self.start, asked.world_size))  # once for both
        graders = {"core": Grader(asked, None, "the core", start, core=True)}
        if asked.reference is not asked.core:
            graders["hardened"] = Grader(asked, None, "the reference", start)
        return graders

    def start(self, *asked, **named):
        world = ranks(*asked, device="cpu", announce=False, **named)
        self.addfinalizer(world.close)  # after the last trial
        return world


class OneTrial(pytest.Item):
    def __init__(self, *, trial, grader, **named):
        super().__init__(**named)
        self.trial, self.grader = trial, grader
        self.add_marker(trial.group)
        self.add_marker("ranks")
        self.add_marker(pytest.mark.xdist_group(f"{self.path.parent.name}: trials"))  # share ranks

    def runtest(self):
        result = self.grader.result(self.trial)
        if result.said != "right":
            said = f"{self.trial.part}: {self.trial.title}", result.sentence, result.printed
            pytest.fail("\n".join(filter(None, said)), pytrace=False)

    def reportinfo(self):
        return self.path, None, self.name
