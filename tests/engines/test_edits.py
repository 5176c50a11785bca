"""Wrong solutions as edits of the right one, and decisions about wrong answers."""

import sys
from types import ModuleType

import pytest
from told import from_told, sample, valued

from coursekit import topics
from coursekit.exercises.checker import Exercise, judge
from coursekit.exercises.decisions import decisions_of
from coursekit.exercises.edits import Topic, edited
from coursekit.exercises.mistakes import decisions_in
from coursekit.exercises.properties import not_finite

MOST = 8  # listed wrong solutions of an exercise
TEXT = sample("mistakes.md")
LISTS = sample("decisions.md")


def triple(a):
    return 3 * a


def decisions(text):
    return decisions_of(decisions_in(text)["triple"], __name__, "triples/mistakes.md, triple")


@pytest.fixture
def topic(tmp_path, monkeypatch):
    """A topic of a package with these mistakes."""
    (tmp_path / "triples").mkdir()
    (tmp_path / "triples" / "__init__.py").touch()
    (tmp_path / "triples" / "mistakes.md").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("triples.exercises")
    module.__package__ = "triples"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield Topic(module.__name__)
    sys.modules.pop("triples", None)


def test_an_exercise_has_its_mistakes_of_the_text(topic):
    """Must catch: a second block of a sentence lost, a wrong solution that is the right one, the
    mistakes of another exercise."""
    exercise = topic.exercise("triple", triple, cases=(dict(a=3), dict(a=7)), right="thrice.")
    assert (exercise.name, exercise.reference) == ("triple", triple)
    assert [wrong.solution(5) for wrong in exercise.misconceptions] == [10, 10, 16]
    assert judge(exercise, lambda a: 2 * a).sentence == "that is the double."
    found = topic.exercise("found", [16, 16], name="found", cases=({},), right="", of_a_value=True)
    assert (found.reference(), found.misconceptions[0].solution()) == ([16, 16], [4, 4])


def test_an_edit_finds_its_text(topic):
    """Must catch: an edit of a line that the solution has no more, which leaves the right one."""
    assert edited("a = 1\nb = a\n", ["a => c"]) == "c = 1\nb = c\n"
    topic.mistakes["triple"][0].blocks[0][0] = "4 => 2"
    with pytest.raises(ValueError, match="'4' is not in"):
        topic.exercise("triple", triple, cases=(dict(a=3),), right="thrice.")


def test_an_exercise_that_no_lab_solves_is_named(topic):
    """Must catch: an exercise without a right solution."""
    with pytest.raises(KeyError, match="triples.half"):
        topic.exercise("half", cases=(dict(a=3),), right="half.")


@from_told("found, a, said", valued)
def test_the_first_line_that_is_true_speaks(found, a, said):
    """Must catch: a heading's condition that is not asked, or asked of the lines above it; the line
    `...` passed over; a rule that ends nothing; lines `each alone` that hide one another, or that
    do not know the names above them; headings that are joined and hide one another, a line below
    one that speaks beside the first; a full stop forgotten."""
    lists = decisions(LISTS).lists
    assert [one(found, 3 * a, a=a) for one in lists] == said


def test_errors_stand_beside_the_lists(topic):
    """Must catch: a pattern taken for a condition, the errors of two exercises given to one."""
    assert decisions(LISTS).errors == (("None.*", "nothing comes back."),)
    exercise = topic.exercise("triple", triple, cases=(dict(a=3), dict(a=7)), right="thrice.")
    assert exercise.errors == (("NoneType", "nothing comes back."),)


def test_a_condition_names_its_place():
    """Must catch: a condition that is no Python found when a reader's answer meets it first; a
    traceback without the file and the exercise."""
    with pytest.raises(SyntaxError) as wrong:
        decisions("## triple\n\na >\n:   large.\n")
    assert wrong.value.filename == "<triples/mistakes.md, triple>" and wrong.value.text == "a >"
    (one,) = decisions("## triple\n\nnobody > 1\n:   large.\n").lists
    with pytest.raises(NameError) as caught:
        one(1, 3, a=1)
    assert caught.traceback[-1].frame.code.raw.co_filename == "<triples/mistakes.md, triple>"


def of_the_topics():
    for module in topics.modules("exercises"):
        if hasattr(module, "topic"):
            yield pytest.param(module, id=module.topic.name)


@pytest.mark.parametrize("module", list(of_the_topics()))
def test_lists_are_short_and_belong_to_an_exercise(module):
    """Must catch: a heading of mistakes.md that no exercise has, a list that grows with every
    wrong answer instead of a property."""
    exercises = {name: value for name, value in vars(module).items() if isinstance(value, Exercise)}
    lists = {name: len(mistakes) for name, mistakes in module.topic.mistakes.items()}
    unknown = set(lists) - set(exercises)
    assert not unknown, f"headings of mistakes.md that name no exercise: {sorted(unknown)}"
    long = {name: many for name, many in lists.items() if many > MOST}
    assert not long, f"more than {MOST} sentences, make a property of some: {long}"


@from_told("found, words")
def test_what_is_not_finite_has_its_words(found, words):
    """Must catch: a nan within a list passed over, or words for a finite number."""
    assert not_finite(found).startswith(words) and bool(words) == bool(not_finite(found))
