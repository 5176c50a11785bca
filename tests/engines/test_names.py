"""A public name of the packages names one thing."""

from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
from sources import source
from told import cells

import coursekit
import ranklab
import shardlab
from coursekit import topics

PACKAGES = [Path(package.__file__).parent for package in (shardlab, ranklab, coursekit)]
pytestmark = pytest.mark.xdist_group("sources")  # one worker reads them

# Names that several modules define by design, and which modules may, as patterns under their
# package; told.md says why. Another module that takes such a name is a second thing.
BY_DESIGN = {
    name: patterns.split()
    for names, patterns, _ in cells("test_names::by design")
    for name in names.split()
}


def kind(path: Path) -> str:
    """A topic's formulas: functions are quantities and their places, read by the registry and
    imported from nowhere else, and the registry refuses a second quantity of one name."""
    of_formulas = "topics" in path.parts and "formulas" in (path.stem, *path.parts)
    return "formulas" if of_formulas else "imported"


def hardened(paths: list[Path]) -> list[Path]:
    """Without the core of a technique where its folder has the hardened class under the same
    name."""
    folders = [path.parts[0] for path in paths if not path.stem.startswith("core")]
    return [p for p in paths if not (p.stem.startswith("core") and p.parts[0] in folders)]


def defined_more_than_once(packages: list[Path], by_design=BY_DESIGN) -> dict[str, list[str]]:
    """Public name -> the modules that define it, where they are several and one of them is imported
    by name."""
    modules = defaultdict(list)
    files = sorted((path, package) for package in packages for path in package.rglob("*.py"))
    for path, package in files:
        inside = path.relative_to(package)
        for name in source(path).public:
            modules[name].append(inside)
    modules = {name: hardened(paths) for name, paths in modules.items()}
    return {
        name: [path.as_posix() for path in paths]
        for name, paths in modules.items()
        if len(paths) > 1 and (name in by_design or {*map(kind, paths)} != {"formulas"})
    }


def doubles(found: dict[str, list[str]], by_design=BY_DESIGN) -> dict[str, list[str]]:
    """The modules among these that may not share the name."""
    patterns = {name: by_design.get(name, ()) for name in found}
    outside = {
        name: [path for path in paths if not any(fnmatch(path, one) for one in patterns[name])]
        for name, paths in found.items()
    }
    return {name: paths for name, paths in outside.items() if paths}


def test_no_public_name_for_two_things():
    """Must catch: a second class Row; a constant SECONDS in two modules; a function of an engine
    with the name of a formula, or one beside those that share a name by design; a name or a pattern
    in the lists above that nothing fits."""
    found = defined_more_than_once(PACKAGES)
    twice = doubles(found)
    assert not twice, f"one name, several things: {twice}; the most general one keeps the name"
    assert set(BY_DESIGN) == set(found), f"defined once: {sorted(set(BY_DESIGN) - set(found))}"
    unused = {
        name: pattern
        for name, patterns in BY_DESIGN.items()
        for pattern in patterns
        if not any(fnmatch(path, pattern) for path in found[name])
    }
    assert not unused, f"no such module defines the name: {unused}"


def test_a_name_is_shared_by_the_named_modules_only(tmp_path):
    """Must catch: a list of names without their modules, which hides a third thing of that name; a
    formula beside an engine's function; a new topic that needs a line of its own."""
    for name, text in {
        "formulas/events.py": "def race(): pass\ndef wait_seconds(): pass\n",
        "topics/new/formulas.py": "def peak(): pass\n",
        "topics/new/runs.py": "def race(): pass\n",
        "topics/one/formulas.py": "def peak(): pass\ndef wait_seconds(): pass\n",
        "topics/one/runs.py": "def race(): pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    by_design = {"race": ["topics/*/runs.py"]}
    found = defined_more_than_once([tmp_path], by_design)
    both = ["formulas/events.py", "topics/one/formulas.py"]
    expected = {"race": ["formulas/events.py"], "wait_seconds": both}
    assert doubles(found, by_design) == expected


def test_a_second_definition_is_found(tmp_path):
    """Must catch: names of classes, functions, unpacked or annotated constants that are not looked
    at; private names, methods and imports that are."""
    (tmp_path / "one.py").write_text(
        "class Row: pass\nLEFT, TOP = 1, 2\nWIDE: int = 3\n_OWN = 4\ndef show(): pass\n"
    )
    (tmp_path / "two.py").write_text(
        "from .one import LEFT\nclass Row: pass\nTOP = WIDE = 1\n_OWN = 4\n"
        "class Table:\n    def show(self): pass\n"
    )
    both = ["one.py", "two.py"]
    assert defined_more_than_once([tmp_path]) == {"Row": both, "TOP": both, "WIDE": both}


def test_a_name_that_finds_a_topic_is_in_one(monkeypatch):
    """Must catch: a second topic that takes a card of pages over in silence; a topic that is gone
    and gives a StopIteration."""
    made = [SimpleNamespace(__name__=name, moves=1) for name in ("one.steps", "two.steps")]
    made.append(SimpleNamespace(__name__="three.steps", cuts=1))
    monkeypatch.setattr(topics, "modules", lambda part: made)
    assert topics.the_one_with("cuts", "steps") is made[2]
    with pytest.raises(LookupError, match="is to have moves, .* in one.steps and two.steps: give"):
        topics.the_one_with("moves", "steps")
    with pytest.raises(LookupError, match="it is in none"):
        topics.the_one_with("waits", "steps")
