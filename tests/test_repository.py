"""Promises of the layout that a program can check: who imports whom, one version, one lock,
commands that exist."""

import os
import re
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import requires, version
from pathlib import Path
from shutil import unpack_archive

import pytest
import sources
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import ROOT
from programs import ran, tracked_files

import shardlab
from coursekit import sentences

SOURCES = ROOT / "src"
PACKAGES = ("shardlab", "ranklab", "coursekit")  # the wheel's
PYTHONS = ("3.11.7", "3.12.1", "3.13.0", "3.14.0")
pytestmark = pytest.mark.xdist_group("sources")  # one worker reads them


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def lines_of(name: str) -> list[str]:
    """Without comments."""
    return [line for line in text(name).splitlines() if line and not line.startswith("#")]


# ---------------------------------------------------------------- who imports whom


def imported(path: Path) -> set[str]:
    """Dotted names of all that a module imports; `from a import b` gives both a and a.b."""
    found = set()
    for module, names in sources.imported(path, SOURCES):
        found |= {module, *(f"{module}.{name}" for name in names)}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_imports_are_found_wherever_they_stand(tmp_path, monkeypatch):
    """Must catch: an import inside a function or a relative one not seen, which would blind the
    tests below."""
    monkeypatch.setattr(sys.modules[__name__], "SOURCES", tmp_path)
    module = tmp_path / "coursekit" / "show" / "bars.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from ..machine import limit\ndef draw():\n    import torch.nn\n    from . import palette\n"
    )
    assert {"torch.nn", "coursekit.machine.limit", "coursekit.show.palette"} <= imported(module)


# Who may import whom. Techniques import torch and techniques; the bench imports torch, itself and
# shardlab.common. In coursekit the engines import both, engines and the finder of topics, but the
# formulas do not know the planner; a topic imports all of these and itself.
TOPICS = {path.parent.name for path in (SOURCES / "coursekit" / "topics").glob("*/__init__.py")}
# What building the book loads.
NO_TORCH = (
    "coursekit/formulas",
    "coursekit/planner",
    "coursekit/show",
    "coursekit/recordings/recordings.py",
    "shardlab/collective_plans.py",
    "shardlab/pipelines/__init__.py",
    "shardlab/pipelines/schedule*.py",
    "shardlab/pipelines/simulation.py",
)
# Of a topic: what labs and `make gpu` run, the smallest versions and the emulation that its chapter
# prints, the helpers that only these import, and a helper that labs, tests and benches import.
# Everything else in a topic imports no torch.
TORCH_IN_TOPICS = {
    "exercises",
    "runs",
    "lab",
    "ladder",
    "mixed_precision.float8",
    "zero.building",
    "zero.fast_ring",
    "zero.rank_of_many",
    "where_the_time_goes.slow_programs",
    "feeding_the_gpu.slow_store",
}
NEVER_TORCH = {"formulas", "explorer", "steps", "figures", "pictures"}  # as engines find them


def floor_of(name: str) -> str:
    """A technique, what techniques share, the bench, formulas, engines, the finder of topics or one
    topic, by a dotted name; "" for the packages themselves and for all other modules."""
    package, first, second = [*name.split("."), "", ""][:3]
    if package == "shardlab" and first:
        return "common" if first == "common" else "techniques"
    if package == "ranklab":
        return "bench"
    if package == "coursekit" and first == "topics":
        return second if second in TOPICS else "topics"
    if package == "coursekit" and first:
        return "formulas" if first == "formulas" else "engines"
    return {"bookkit": "the book", "workshop": "a room"}.get(package, "")


def may_import(floor: str) -> set[str]:
    """The floors below one, and the floor itself."""
    common = {"", "common"}
    least = {
        "": common,
        "common": common | {"techniques"},
        "techniques": common | {"techniques"},
        "bench": common | {"bench"},
        "formulas": common | {"formulas", "topics"},
    }
    all_below = common | {"techniques", "bench", "formulas", "engines", "topics"}
    return least.get(floor, {floor} | all_below)


def test_who_imports_whom():
    """Must catch: a technique that imports the bench, a bench that imports a technique or a
    formula, a formula that imports the planner, an engine that imports a topic, a topic that
    imports another topic, and what imports the book or the room."""
    assert may_import("techniques") == {"", "common", "techniques"}
    assert may_import("bench") == {"", "common", "bench"}
    assert floor_of("coursekit.planner.fits") not in may_import("formulas")
    assert {"engines", "topics"} <= may_import("engines") & may_import("zero")
    assert floor_of("workshop.room") not in may_import("engines") | may_import("zero")
    assert "saving" not in may_import("zero") and "zero" not in may_import("engines")
    modules = [path for package in PACKAGES for path in (SOURCES / package).rglob("*.py")]
    wrong = [
        f"{module.relative_to(SOURCES)} imports {name}"
        for module in sorted(modules)
        if module.name != "__main__.py"
        for here in [floor_of(".".join(module.relative_to(SOURCES).with_suffix("").parts))]
        for name in imported(module)
        if floor_of(name) not in may_import(here)
    ]
    assert wrong == []


def circle(graph: dict) -> str:
    """A circle of the graph, as text; "" where there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_no_circle():
    """No module imports itself by way of others, not even inside a function. Must catch: subset.py
    that imports render.py, which imports registry.py, which imports subset.py."""
    files = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): path
        for package in (*PACKAGES, "bookkit")
        for path in SOURCES.joinpath(package).rglob("*.py")
    }
    graph = {}
    for module, path in files.items():
        found = set()
        for base, names in sources.imported(path, SOURCES):
            inside = [f"{base}.{name}" for name in names]
            found |= {one if one in files else base for one in inside or [base]}
        graph[module] = found & files.keys() - {module}
    within = {"coursekit.formulas.asking", "coursekit.formulas.subset"}
    assert graph["coursekit.formulas.registry"] == within
    assert circle({"a": ["b"], "b": ["a"]})
    assert not circle(graph)


def test_only_the_command_of_shardlab_names_the_course():
    """Must catch: another name in __main__.py, which the rule above leaves out; a technique that
    finds the course by a text, as import_module("coursekit.formulas")."""
    (command,) = (SOURCES / "shardlab").rglob("__main__.py")
    assert {name for name in imported(command) if floor_of(name)} == {
        "coursekit.__main__",
        "coursekit.__main__.main",
    }
    told = [
        path
        for path in (SOURCES / "shardlab").rglob("*.py")
        if path != command and re.search(r"""["']coursekit\b""", path.read_text("utf-8"))
    ]
    assert told == []


def modules_in(part: str) -> list[Path]:
    """The modules that a part of NO_TORCH names."""
    found = SOURCES.glob(part)
    return [file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])]


@pytest.mark.parametrize("part", NO_TORCH)
def test_the_book_needs_no_torch(part):
    """Must catch: `import torch` in a formula, or in a plan that a page draws; a module that moved,
    so that nothing is looked at."""
    modules = modules_in(part)
    assert modules, f"{part} names no file"
    wrong = [module for module in modules if any(within(n, "torch") for n in imported(module))]
    assert wrong == []


def without_torch(topic: Path) -> list[Path]:
    """The modules of a topic that may not import torch."""
    modules = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts): path
        for path in sorted(topic.rglob("*.py"))
    }
    short = {name: name.removeprefix(f"coursekit.topics.{topic.name}.") for name in modules}
    asked = {name: imported(path) for name, path in modules.items()}
    importers = {name: {other for other in asked if name in asked[other]} for name in modules}
    free, before = set(), None
    while free != before:  # a helper of a helper, too
        before = set(free)
        for name in modules:
            part = short[name].partition(".")[0]
            alone = f"{topic.name}.{part}" in TORCH_IN_TOPICS
            helper = bool(importers[name]) and importers[name] <= free and part not in NEVER_TORCH
            if part in TORCH_IN_TOPICS or alone or helper:
                free.add(name)
    return [path for name, path in modules.items() if name not in free]


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_what_pages_load_of_a_topic_needs_no_torch(topic):
    """Must catch: `import torch` in an explorer, in the steps of a stepper, in a helper that one of
    them imports, or in a module with a name that no other topic has; nothing looked at."""
    held = without_torch(SOURCES / "coursekit" / "topics" / topic)
    named = {path.stem for path in held} | {path.parent.name for path in held}
    assert {"formulas", "explorer"} & named
    assert [path for path in held if any(within(n, "torch") for n in imported(path))] == []


def test_only_helpers_of_labs_and_runs_may_import_torch(tmp_path, monkeypatch):
    """Must catch: a helper that an explorer imports besides a lab, a helper that nobody imports, or
    figures, which only a lab imports, let through; a helper of a helper of a lab refused."""
    monkeypatch.setattr(sys.modules[__name__], "SOURCES", tmp_path)
    topic = tmp_path / "coursekit" / "topics" / "pretended"
    topic.mkdir(parents=True)
    for name, text in dict(
        lab="from . import weigh, figures\nfrom .both import x\n",
        weigh="from coursekit.topics.pretended.deeper import x\n",
        explorer="from .both import x\n",
        **dict.fromkeys(("deeper", "both", "figures", "nobody", "runs"), ""),
    ).items():
        (topic / f"{name}.py").write_text(text)
    assert [path.stem for path in without_torch(topic)] == ["both", "explorer", "figures", "nobody"]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh Python holds after `statement`."""
    script = (
        f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in"
        " sys.modules}))"
    )
    return set(ran(sys.executable, "-c", script, check=True).stdout.split())


def test_import_of_the_packages_is_light():
    """Must catch: a convenience import in an __init__.py of the three, or in a module of the ranks'
    parent, which would load torch or NumPy with every use: a second of a notebook's first cell."""
    loaded = loaded_by("import shardlab, ranklab.ranks, coursekit")
    assert not loaded & {"torch", "numpy", "plotly"}


@pytest.mark.slow
def test_the_books_code_loads_no_torch():
    """Must catch: a package that brings torch in indirectly, which the look at this package's
    imports cannot see; a check's module in a directive, which wants what only labs install."""
    modules = [
        ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        for package in ("coursekit/formulas", "coursekit/planner", "coursekit/show", "bookkit")
        for path in sorted((SOURCES / package).rglob("*.py"))
        if path.name != "__main__.py"
    ]
    assert len(modules) > 10
    quick = "sys.modules['rfc3987_syntax'] = None; "  # as in conftest.py
    loaded = loaded_by(f"{quick}import {', '.join(modules)}")
    assert not {"torch", "cloudpickle"} & set(loaded)


@pytest.mark.slow
def test_labs_and_make_gpu_import_no_compiler():
    """Mutations: DTensor imported above the ledger; PyTorch's masks above the mixes of tokens: each
    brings SymPy, and a second to the first cell of a lab and to each process of `make gpu`."""
    loaded = loaded_by("import coursekit.lab, coursekit.recordings.record")
    assert "torch" in loaded and "sympy" not in loaded


EVERY_TOPIC = """
import coursekit.topics, importlib, pkgutil
for module in pkgutil.walk_packages(coursekit.topics.__path__, "coursekit.topics."):
    importlib.import_module(module.name)
print(coursekit.topics.__file__)
"""


@pytest.mark.slow
def test_topics_need_nothing_beside_the_wheel(tmp_path):
    """`make test` builds the wheel first. Must catch: a table of the repository that setup.py
    leaves out, without which lab 20 began with an error."""
    (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
    unpack_archive(wheel, tmp_path, "zip")
    alone = dict(os.environ, PYTHONPATH=str(tmp_path))
    done = ran(sys.executable, "-c", EVERY_TOPIC, cwd=tmp_path, env=alone)
    assert done.stdout.startswith(str(tmp_path)), done.stderr


# ---------------------------------------------------------------- one version, one lock


def test_one_version():
    """Must catch: a release that changes the package's version and not the citation."""
    cited = re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)[1]
    assert cited == shardlab.__version__ == version("shardlab")


def under(python: str, extra: str = "") -> dict[str, str]:
    """The environment in which a marker is evaluated."""
    version = python.rpartition(".")[0]
    return {"python_full_version": python, "python_version": version, "extra": extra}


def pins(python: str) -> dict[str, list[str]]:
    """Name -> versions that constraints.txt gives it under `python`."""
    found = {}
    for line in lines_of("constraints.txt"):
        pin = Requirement(line)
        (exact,) = pin.specifier
        assert exact.operator == "==", line
        if pin.marker is None or pin.marker.evaluate(under(python)):
            found.setdefault(canonicalize_name(pin.name), []).append(exact.version)
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_covers_what_is_asked_for(python):
    """Must catch: a requirement added without `make lock`, a pin outside its range, two pins for
    one Python."""
    locked = pins(python)
    assert all(len(versions) == 1 for versions in locked.values())
    for line in requires("shardlab") + requires("bookkit"):
        requirement = Requirement(line)
        if requirement.marker and not any(
            requirement.marker.evaluate(under(python, extra)) for extra in ("lab", "peers", "test")
        ):
            continue
        (pinned,) = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned, prereleases=True), (
            f"{requirement} is locked to {pinned}"
        )


def test_requirements_are_ranges_and_name_no_index():
    """Must catch: an exact version that would replace a torch that is there; somebody's package
    index."""
    for name in ("requirements.txt", "constraints.txt"):
        assert not [line for line in lines_of(name) if line[0] == "-" or "://" in line], name
    ranges = [Requirement(line) for line in lines_of("requirements.txt")]
    assert not [range for range in ranges if "==" in str(range.specifier)]
    assert "torch" in {range.name for range in ranges}


# ---------------------------------------------------------------- commands and files


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))


@pytest.mark.parametrize(
    "path", ["README.md", ".ci/run", ".github/workflows/test.yml", ".github/workflows/publish.yml"]
)
def test_the_commands_that_are_named_exist(path):
    """Must catch: a make target renamed, and the README or the automation still calling the old
    one."""
    page = text(path)
    named = set(re.findall(r"(?:^|`|- run: |; ?)make ([a-z]+)", page, re.MULTILINE)) | (
        {"test"} if ".ci/run" in page else set()
    )
    assert named or path.endswith("test.yml")
    assert named <= targets(), named - targets()


def test_continuous_integration_runs_the_readmes_test_command():
    """Must catch: CI that tests something else than README.md tells a newcomer to run, or skips the
    browser."""
    commands = lines_of(".ci/run")
    assert commands[-1] == "make test"
    assert any(line.startswith("export CI=true") for line in commands)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert "\nmake test " in text("README.md")


def test_the_jobs_run_every_test():
    """Must catch: a mark that `make check` leaves out and no job runs; a job for the oldest PyTorch
    that installs another; a path of a test that was moved."""
    page = text(".github/workflows/test.yml")
    parts = re.search(r"matrix: \{ part: \[(.+)\] \}", page)[1].split(", ")
    left_out = re.search(r'-m "not \((.+)\)"', text("Makefile"))[1].split(" or ")
    registered = re.findall(r'^    "([a-z]+): ', text("pyproject.toml"), re.MULTILINE)
    assert [*parts, "nightly"] == left_out == registered
    assert "make nightly" in text(".github/workflows/nightly.yml")
    oldest = re.search(r"^torch>=(.+)$", text("requirements.txt"), re.MULTILINE)[1]
    assert f"/torch=={oldest}.0/" in page
    for path in re.findall(r"tests/\S+\.py", page):
        assert (ROOT / path).exists(), path


def described() -> set[str]:
    """The files, folders and modules that the pages for contributors name as they are now. In the
    row of a package, `stage1.py` is a file of that package."""
    pages = [text(name) for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")]
    changes = text("CHANGELOG.md")
    new = [row.split("|")[2] for row in changes.splitlines() if row.count("|") == 3]
    found = set()
    for line in [*"".join(pages).splitlines(), *new]:
        package = re.match(r"\| `(\w+/)` \|", line)
        for name in re.findall(r"`([^`\s<>*:]+)`", line):
            of_package = package and name.endswith(".py") and "/" not in name
            found.add(package[1] + name if of_package else name)
    made = {line.strip("/") + "/" for line in text(".gitignore").splitlines()}
    dotted = tuple(f"{package}." for package in PACKAGES)
    named = {name for name in found if name.endswith((".py", "/")) or name.startswith(dotted)}
    return named - made


def exists(name: str) -> bool:
    """`zero/`, `gpt.py` or `shardlab.zero.hardened.stage3.Unit` among the sources, or a path
    from the root; a file of a package, in its `hardened/` too; the name of what every topic may
    have."""
    if name.startswith(tuple(f"{package}." for package in PACKAGES)):
        path = SOURCES / name.replace(".", "/")
        inside = path.parent.with_suffix(".py")
        defined = inside.exists() and re.search(rf"\b{path.name}\b", inside.read_text())
        return path.is_dir() or path.with_suffix(".py").exists() or bool(defined)
    packages = [SOURCES / package for package in PACKAGES]
    homes = [ROOT, SOURCES, *packages, *(SOURCES / "coursekit" / "topics").iterdir()]
    package, _, file = name.partition("/")
    return any(
        (home / inside).exists()
        for home in homes
        for inside in (name, f"{package}/hardened/{file}")
    )


def test_what_the_architecture_names_exists():
    """Must catch: a module that moved while ARCHITECTURE.md, CONTRIBUTING.md or the changelog's
    table still names its old place."""
    assert len(described()) > 30
    assert {name for name in described() if not exists(name)} == set()
    assert not exists("shardlab.zero.nothing") and not exists("shardlab.gpt.Nothing")
    assert not exists("zero/nothing.py")


def test_the_architecture_names_what_exists():
    """Must catch: a new package that ARCHITECTURE.md does not name; the row of one that is deleted
    from ARCHITECTURE.md."""
    packages = {
        f"{path.parent.name}/"
        for package in PACKAGES
        for path in (SOURCES / package).glob("*/__init__.py")
    }
    assert {"zero/", "mixed_precision/", "formulas/"} <= packages
    page = text("ARCHITECTURE.md")
    missing = {name for name in packages if f"`{name}`" not in page}
    assert not missing, f"ARCHITECTURE.md has no row for these packages: {sorted(missing)}"


def test_every_target_says_what_it_does():
    """Must catch: a target without the text that `make` prints."""
    printed = ran("make", "--no-print-directory", cwd=ROOT, check=True).stdout
    assert targets() == set(re.findall(r"^  ([a-z]+) +\w", printed, re.MULTILINE))


def test_every_lab_stands_in_the_book():
    """Must catch: a lab that is written but not in the contents, or that no chapter offers in its
    header."""
    contents = text("_toc.yml")
    chapters = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md")
    )
    labs = [f"labs/{path.stem}" for path in (ROOT / "labs").glob("*.ipynb")]
    assert labs
    for lab in labs:
        assert f"file: {lab}\n" in contents
        assert f"\nlab: {lab}\n---\n" in chapters


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # a picture or a font


def test_no_file_names_somebodys_machine():
    """Must catch: a home folder's path, left in the stored output of a lab or in a message."""
    home = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w|[A-Z]:\\\\?Users")
    assert home.search("/ho" + "me/ada/book") and home.search("C:" + r"\Users\ada")
    found = {
        str(path.relative_to(ROOT)): match.group()
        for path in tracked_files()
        if (match := home.search(text_of(path)))
    }
    assert found == {}


def test_only_the_readme_names_a_package_index():
    """Must catch: a build that depends on one index, which a mirror or a room without a network
    does not have."""
    index = re.compile(r"download\.pytorch\.org" r"|pypi\.org/simple")
    named = {path.name for path in tracked_files() if index.search(text_of(path))} - {
        Path(__file__).name
    }
    assert named == {"README.md"}


def test_each_module_of_the_tests_has_a_name_of_its_own():
    """Must catch: two helpers of one name, of which each test gets that which is imported first."""
    on_the_path = ("tests", "tests/*", "tools", "workshop")
    names = [path.stem for folder in on_the_path for path in ROOT.glob(f"{folder}/*.py")]
    assert {name for name in names if names.count(name) > 1} == {"conftest"}


@pytest.mark.parametrize("file", ("knobs.md", "machine.md", "oom.md", "slips.md"))
def test_each_sentence_of_data_has_a_condition_in_python(file):
    """Must catch: a condition or braces that are no Python, found when somebody asks; a line that
    is written in another way, and passed over."""
    for part in sentences.data_text(file).split("\n## ")[1:]:
        heading = part.partition("\n")[0]
        assert len(sentences._compiled(file, heading)) == len(re.findall(r"(?m)^- `", part))
