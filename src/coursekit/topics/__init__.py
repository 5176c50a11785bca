"""One folder for each chapter, named as its page. Engines find a topic's modules by name, so a new
topic needs no entry in any list:

    formulas.py, or a package    quantities and formulas, which fill the registry
    explorer.py                  explorers, as data
    steps.py                     what a stepper shows, as data
    figures.py                   plotly figures of measurements
    pictures.py                  still pictures of pages, drawn as SVG (PICTURES)
    exercises.py                 exercises, with the wrong solutions that readers write
    predictions.md, mistakes.md  wrong numbers that readers of the lab lock, and wrong solutions
    lab.py                       what the lab builds, trains, weighs and counts
    runs.py                      what `make gpu` records (RUNS) and what `make bench` races
                                 (BENCHES)

A topic may import the shelf and the engines, and no other topic: formulas of different topics meet
by the names of their arguments.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType


def names() -> list[str]:
    """The topics, in alphabetical order."""
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)


def with_module(part: str) -> list[str]:
    """The topics that have a module `part`, which is not imported."""
    return [topic for topic in names() if find_spec(f"{__name__}.{topic}.{part}")]


def modules(part: str) -> list[ModuleType]:
    """The module `part` of every topic that has one, imported, in the order of names()."""
    return [import_module(f"{__name__}.{topic}.{part}") for topic in with_module(part)]


def the_one_with(name: str, part: str) -> ModuleType:
    """The module `part` of the one topic where it has `name`; LookupError unless there is one."""
    found = [module for module in modules(part) if hasattr(module, name)]
    if len(found) != 1:
        there = " and ".join(module.__name__ for module in found) or "none"
        raise LookupError(
            f"{part}.py of one topic is to have {name}, by which it is found; it is in {there}:"
            " give all others another name."
        )
    return found[0]
