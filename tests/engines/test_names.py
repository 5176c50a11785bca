"""A public name of the package names one thing."""

from collections import defaultdict
from pathlib import Path

from sources import source

import shardlab

PACKAGE = Path(shardlab.__file__).parent

# Names that several modules define by design: the same role in each of them, and why.
A_ROLE_IN_EVERY_TOPIC = {
    "PICTURES": "the still pictures of a topic, by name",
    "ASSIGNMENT": "what is built in a topic, and its trials",
    "RUNS": "what `make gpu` measures of a topic",
    "BENCHES": "what `make bench` races of a topic",
    "WAYS": "what a topic's races compare",
    "race": "a topic's race",
    "on_ranks": "a topic's rows of one number of ranks",
    "formula": "the decorator of a module of formulas, which knows the module's chapter",
    "SIZES": "the sizes of a topic's GPT",
    "build_model": "the model of a lab",
    "count_sent": "what a rank of a lab sends",
    "given_to_explorer": "where the explorer of a lab begins",
    "recorded_predictions": "what was recorded on a GPU, by the names of a lab's predictions",
    "warm_up": "a first step of a lab's ranks, which loads what PyTorch needs",
    "COLOURS": "the colours of what a timeline shows",
    "RANKS": "how many ranks a stepper can show",
    "Step": "what a stepper shows of one step",
    "sentence": "what a step does, in words",
    "detail": "what is sent and held so far, in words",
    "encode": "a step in few letters, for the page",
    "page_data": "what a stepper's page needs",
}
THE_SAME_IN_ANOTHER_WAY = {
    **dict.fromkeys(
        (
            "all_gather",
            "all_reduce",
            "reduce_scatter",
            "run",
            "Chunks",
            "PIECE_BYTES",
            "Ring",
            "LossScaler",
            "MasterWeights",
        ),
        "readable in one file and fast in another, behind the same interface",
    ),
    **dict.fromkeys(
        ("all_to_all", "barrier", "gather", "scatter"), "a collective, and the plan that it runs"
    ),
    **dict.fromkeys(("equal", "where"), "of numbers, and as SymPy writes it"),
    "ShardedOptimizer": "of stage 1, and its subclass of stage 2",
    "BUCKET_BYTES": "the default of replicas and of stages 1 and 2, which are compared",
    "UNIT_BITS": "how a message's tag names a unit; ranks read tags without loading ZeRO",
    "main": "a command",
}
BY_DESIGN = {**A_ROLE_IN_EVERY_TOPIC, **THE_SAME_IN_ANOTHER_WAY}


def is_registered(path: Path) -> bool:
    """A topic's formulas: functions are quantities and their places, read by the registry and
    imported from nowhere else. So are the trials of an assignment, which the grader reads."""
    registered = {"formulas", "assignment"}
    return "topics" in path.parts and not registered.isdisjoint((path.stem, path.parent.name))


def defined_more_than_once(package: Path) -> dict[str, list[str]]:
    """Public name -> the modules that define it, where they are several."""
    modules = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for name in source(path).public:
            if not is_registered(path.relative_to(package)) or name in BY_DESIGN:
                modules[name].append(path.relative_to(package).as_posix())
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_no_public_name_for_two_things():
    """Must catch: a second class Row; a constant SECONDS in two modules; a name in the list above
    that is defined only once, so that the list hides nothing."""
    found = defined_more_than_once(PACKAGE)
    twice = {name: paths for name, paths in found.items() if name not in BY_DESIGN}
    assert not twice, f"one name, several things: {twice}; the most general one keeps the name"
    assert set(BY_DESIGN) == set(found), f"defined once: {sorted(set(BY_DESIGN) - set(found))}"


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
    assert defined_more_than_once(tmp_path) == {"Row": both, "TOP": both, "WIDE": both}
