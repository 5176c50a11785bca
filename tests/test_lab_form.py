"""Every lab has the same form, which chapters/adding-a-lab.md says. `form_problems` looks at the
notebook as it is stored; each of its rules is broken once below, to see that it notices."""

import ast
import builtins
import copy
import io
import re
import subprocess
import symtable
import sys
import tokenize
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from test_labs import COMPARED, LABS, code_cells
from told import sample

from bench.labs import MOST_GIVEN, lines_of_lab
from bookkit.lab_pages import ESCAPED
from bookkit.learner import INSTALL_CELL, has_tag, learner_edition
from coursekit import topics
from coursekit.exercises.checker import Exercise
from coursekit.exercises.decisions import DecisionList
from coursekit.topics.why_one_gpu.exercises import training_seconds_from_rate

CELLS, LINES, WIDTH = range(25, 46), 20, 88  # characters: what the page shows without scrolling
PRINTED = 66
TAGS = {
    "install",
    "hide-input",
    "setup",
    "predict",
    "blank",
    "check",
    "solution",
    COMPARED,
    "raises-exception",
    "core",
    "more",
    "task",
}
GIVEN = {*dir(builtins), "display"}


# ---------------------------------------------------------------- reading a lab


MAGIC = re.compile(r"%%ranks\b.*\n")  # above code that runs on ranks


def python_of(source: str) -> str:
    """The Python of a cell: all but the line that sends it to the ranks."""
    return MAGIC.sub("", source, count=1) if MAGIC.match(source) else source


@cache  # every rule looks at the cells anew; no rule changes a tree
def parsed(source: str) -> ast.Module:
    return ast.parse(python_of(source))


def where(cell) -> str:
    return f"the cell {cell.source.strip().splitlines()[0][:50]!r}"


def calls(cell, name):
    """The calls in a code cell of a function or method of that name."""
    called = [node for node in ast.walk(parsed(cell.source)) if isinstance(node, ast.Call)]
    return [
        node
        for node in called
        if name in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
    ]


def texts(cell, name):
    """The first arguments of those calls, where they are written out; of a dict its keys."""
    first = [node.args[0] for node in calls(cell, name) if node.args]
    keys = [key for node in first if isinstance(node, ast.Dict) for key in node.keys]
    return {node.value for node in [*first, *keys] if isinstance(node, ast.Constant)}


def guesses(cell):
    """The assignments my_something = ... at the top of a cell: name -> value."""
    return {
        target.id: node.value
        for node in parsed(cell.source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith("my_")
    }


def imported_exercises(notebook) -> dict[str, Exercise]:
    """The names that the lab imports from the exercises of a topic, as they are there."""
    modules = {module.__name__: module for module in topics.modules("exercises")}
    found = {}
    for cell in code_cells(notebook):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                for name in node.names:
                    found[name.asname or name.name] = getattr(modules[node.module], name.name)
    return {name: value for name, value in found.items() if isinstance(value, Exercise)}


def checked(cell) -> list[str]:
    """The names of the exercises that a cell checks."""
    return [getattr(node.args[0], "id", "") if node.args else "" for node in calls(cell, "check")]


BLANK = re.compile(
    r"not yet: .+ (gave Ellipsis|met \.\.\., a blank that is left): fill in the blank\."
)


def said_today(text: str, exercise: Exercise) -> bool:
    """Whether a line of a stored output is a whole verdict of this exercise."""
    wrong = (f"not yet: {wrong.sentence}" for wrong in exercise.misconceptions)
    said = {f"right: {exercise.right}", *wrong}
    for asked in exercise.properties:  # sentences that hold no number of the answer
        if isinstance(asked, DecisionList):
            texts = [f"{g.beginning} {o.sentence}".strip() for g in asked.groups for o in g.lines]
        else:
            texts = asked.__code__.co_consts
        said |= {f"not yet: {text}" for text in texts if type(text) is str}
    return any(line in said or BLANK.fullmatch(line) for line in text.splitlines())


def shown(cell) -> str:
    """The text that a cell printed or returned, without the marks of Markdown."""
    return "\n".join(
        output.get("text")
        or ESCAPED.sub(r"\1", output.get("data", {}).get("text/markdown", "").replace("**", ""))
        for output in cell.outputs
    )


def names(cell):
    """(defined, imported, used): the names that a cell gives to the kernel, those of them that are
    imports, those that it asks for. Those of a cell on ranks are not the kernel's."""
    if MAGIC.match(cell.source):
        return set(), set(), set()
    top = symtable.symtable(cell.source, "cell", "exec")
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    imported = {s.get_name() for s in top.get_symbols() if s.is_imported()}
    used = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    inside = top.get_children()
    while inside:
        table = inside.pop()
        used |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
        inside += table.get_children()
    return defined, imported, used - GIVEN


# ---------------------------------------------------------------- the form


def form_problems(notebook) -> list[str]:
    """The points in which a lab is not as every lab is, one sentence each."""
    cells = code_cells(notebook)
    return [
        *layout_problems(notebook, cells),
        *length_problems(notebook),
        *predict_problems(cells),
        *check_problems(notebook, cells),
        *section_problems(notebook),
        *path_problems(notebook, cells),
    ]


def code_problems(notebook) -> list[str]:
    """The points in which code is not written to learn from, one sentence each. The install cell,
    which is the same in every lab and folded, is one cell however long it is: a reader runs it
    alone."""
    cells = code_cells(notebook)
    problems = []
    for cell in cells:
        lines = cell.source.splitlines()
        if len(lines) > LINES and not has_tag(cell, "install"):
            problems.append(f"{where(cell)} has {len(lines)} lines; {LINES} are the limit")
        if max(map(len, lines)) > WIDTH:
            problems.append(f"{where(cell)} has a line of more than {WIDTH} characters")
        problems += tricks(cell)
    return problems + formatting_problems(cells)


def tricks(cell):
    """Ways to put two ideas into one line."""
    tokens = tokenize.generate_tokens(io.StringIO(python_of(cell.source)).readline)
    if any(token.type == tokenize.OP and token.string == ";" for token in tokens):
        yield f"{where(cell)} has a semicolon"
    for node in ast.walk(parsed(cell.source)):
        inside = {type(child) for child in ast.walk(node)}
        if isinstance(node, ast.Import) and len(node.names) > 1:
            yield f"{where(cell)} imports several modules in one line"
        if isinstance(node, ast.Call) and ast.NamedExpr in inside:
            yield f"{where(cell)} gives a name (:=) inside a call"
        if isinstance(node, ast.Lambda) and ast.BoolOp in inside:
            yield f"{where(cell)} has a lambda with and, or"


def formatting_problems(cells) -> list[str]:
    """Cells that ruff would write in another way: PEP 8 spacing, two blank lines around the
    definitions at the top of a cell."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, f"{number:03}.py") for number in range(len(cells))]
        for file, cell in zip(files, cells):
            file.write_text(python_of(cell.source) + "\n", encoding="utf-8")
        options = ["--isolated", "--no-cache", "--quiet", "--line-length", str(WIDTH)]
        subprocess.run([sys.executable, "-m", "ruff", "format", *options, folder], check=True)
        return [
            f"{where(cell)} is not as ruff formats it"
            for file, cell in zip(files, cells)
            if file.read_text(encoding="utf-8") != python_of(cell.source) + "\n"
        ]


def layout_problems(notebook, cells):
    met = sum(not has_tag(cell, "solution") for cell in notebook.cells)
    if met not in CELLS:
        yield f"it has {met} cells beside solutions, not {CELLS.start} to {CELLS.stop - 1}"
    for before, cell in zip([None, *notebook.cells], notebook.cells):
        for tag in set(cell.metadata.get("tags", [])) - TAGS:
            yield f"{where(cell)} has the tag {tag}, which no lab knows"
        if cell.cell_type != "code":
            headings = re.findall(r"^##+ (.*[^?\s])\s*$", cell.source, re.M)
            yield from (f"the heading {heading!r} is no question" for heading in headings)
            continue
        if before is None or before.cell_type != "markdown":
            yield f"{where(cell)} has no text before it"
        elif has_tag(before, "solution") != has_tag(cell, "solution"):
            yield f"of {where(cell)} and the text before it only one is tagged solution"
        printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        if max(map(len, printed.splitlines()), default=0) > PRINTED:
            yield f"{where(cell)} prints a line of more than {PRINTED} characters"
    if not (len(cells) > 1 and has_tag(cells[1], "setup") and _says_what_is_there(cells[1])):
        yield "after the install cell nothing says what this machine can show, tagged setup"
    for tag in ("predict", "check", "blank", "solution"):
        if not any(has_tag(cell, tag) for cell in cells):
            yield f"no cell is tagged {tag}"
    if not any(calls(cell, "explorer") for cell in cells):
        yield "it has no explorer"
    if not calls(cells[-1], "summary"):
        yield "its last cell does not show predictions.summary"
    if any(calls(cell, "ranks_on") for cell in cells) and not calls(cells[-1], "close"):
        yield "its last cell does not close its ranks"


def _says_what_is_there(cell) -> bool:
    return bool(calls(cell, "capabilities") or calls(cell, "ranks_on"))


def length_problems(notebook):
    given, _ = lines_of_lab(notebook)
    if given > MOST_GIVEN:
        yield f"it gives {given} lines of code; {MOST_GIVEN} are the limit"


def predict_problems(cells):
    for cell in cells:
        if has_tag(cell, "predict"):
            locked = {getattr(node.args[-1], "id", "") for node in calls(cell, "lock") if node.args}
            yield from (
                f"{where(cell)} does not lock {name}"
                for name in guesses(cell)
                if name not in locked
            )
            if not guesses(cell):
                yield f"{where(cell)} is tagged predict and has no line my_something = ..."
        elif guesses(cell):
            yield (
                f"{where(cell)} has a guess and is not tagged predict, so the learner's edition"
                " gives it away"
            )
        if calls(cell, "compare") and not calls(cell, "lock"):
            asked = [*calls(cell, "locked"), *calls(cell, "measured")]
            if getattr(parsed(cell.source).body[0], "value", None) not in asked:
                yield (
                    f"{where(cell)} works before it asks whether anything was predicted: begin it"
                    " with predictions.locked(...)"
                )
    if not any(calls(cell, "compare") for cell in cells):
        yield "no prediction is compared with what was measured"


def check_problems(notebook, cells):
    exercises = imported_exercises(notebook)
    solved = [name for cell in cells if has_tag(cell, "solution") for name in checked(cell)]
    for cell in cells:
        if bool(checked(cell)) != has_tag(cell, "check"):
            yield (
                f"{where(cell)} is tagged check and checks nothing, or checks something and is not"
                " tagged"
            )
        for name in checked(cell):
            if name not in exercises:
                yield (
                    f"{where(cell)} checks {name or 'something'}, which is not an exercise"
                    " of a topic"
                )
            elif name not in solved:
                yield f"{where(cell)} checks {name}, and no solution does"
        if has_tag(cell, "check"):
            verdict, other = (
                ("right: ", "not yet: ") if has_tag(cell, "solution") else ("not yet: ", "right: ")
            )
            if shown(cell).count(verdict) != len(checked(cell)) or other in shown(cell):
                yield f"{where(cell)} is stored without {verdict.strip()} for each of its checks"
            yield from (
                f"{where(cell)} shows another verdict of {name} than a check says today: store it"
                for name in checked(cell)
                if name in exercises and not said_today(shown(cell), exercises[name])
            )
            if not has_tag(cell, COMPARED):
                yield f"{where(cell)} is tagged check and not {COMPARED}"


def section_problems(notebook):
    """Each section runs on its own after the cells tagged setup, and a cell still runs after later
    sections have."""
    section, cells = 0, []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            section += bool(re.search(r"^## ", cell.source, re.M))
        elif cell.source.strip() and not has_tag(cell, "install"):
            cells.append((section, cell, *names(cell)))
    setup = set().union(*(defined for _, cell, defined, *_ in cells if has_tag(cell, "setup")))
    locked: dict[int, set] = {}
    for section, cell, *_ in cells:
        locked[section] = locked.get(section, set()) | texts(cell, "lock")
    own: dict[int, set] = {}
    for section, cell, defined, imported, used in cells:
        if has_tag(cell, "setup"):
            continue
        earlier = own.setdefault(section, set())
        yield from (
            f"{where(cell)} uses {name}, which neither its section nor a setup cell gives it"
            for name in sorted(used - defined - earlier - setup)
        )
        yield from (
            f"{where(cell)} compares {name!r}, which its section does not predict"
            for name in sorted(texts(cell, "compare") - locked[section])
        )
        others = set().union(
            *(there - imports for number, _, there, imports, _ in cells if number != section)
        )
        yield from (
            f"{where(cell)} uses {name}, which another section sets too"
            for name in sorted((used - defined) & earlier & others)
        )
        yield from (
            f"{where(cell)} sets {name}, which a setup cell gave to all"
            for name in sorted((defined - imported) & setup)
        )
        earlier |= defined


def sections(notebook):
    """(heading, its code cells) of each section."""
    found = [("", [])]
    for cell in notebook.cells:
        heading = re.search(r"^## (.*)$", cell.source, re.M)
        if cell.cell_type == "markdown" and heading:
            found.append((heading[1], []))
        elif cell.cell_type == "code" and cell.source.strip():
            found[-1][1].append(cell)
    return found


def has_paths(cells) -> bool:
    return any(has_tag(cell, tag) for cell in cells for tag in ("core", "more", "task"))


def path_problems(notebook, cells):
    """The short path through a lab, its core, holds two exercises and the bug hunt, and runs
    without the rest. A lab has one task, which its reader solves in an empty cell."""
    if not has_paths(cells):
        return
    built, hunts = set(), 0
    for heading, own in sections(notebook):
        of_more: set[str] = set()
        for cell in own:
            on = [tag for tag in ("core", "more") if has_tag(cell, tag)]
            if any(has_tag(cell, tag) for tag in ("install", "setup", "solution")):
                if on and not has_tag(cell, "solution"):
                    yield f"{where(cell)} is on every path and tagged {on[0]}"
                continue
            if len(on) != 1:
                yield f"{where(cell)} is tagged {' and '.join(on) or 'neither core nor more'}"
                continue
            defined, _, used = names(cell)
            if on == ["more"]:
                of_more |= defined
                continue
            yield from (
                f"{where(cell)} is core and uses {name}, which only a cell of more gives it"
                for name in sorted((used - defined) & of_more)
            )
            of_more -= defined
            if heading.startswith("More:"):
                yield f"{where(cell)} is core, under the heading {heading!r}"
            if has_tag(cell, "blank") and not has_tag(cell, "task"):
                hunts += heading.startswith("Bug hunt")
                built |= set(checked(cell)) if not heading.startswith("Bug hunt") else set()
        on_more = [has_tag(cell, "more") for cell in own if not has_tag(cell, "solution")]
        if on_more and all(on_more) and not heading.startswith("More:"):
            yield f"the section {heading!r} has no core cell: its heading begins with More:"
    if len(built) < 2 or not hunts:
        yield f"its core has {len(built)} exercises and {hunts} bug hunts; two and one are wanted"
    tasks = [cell for cell in cells if has_tag(cell, "task")]
    if len(tasks) != 1 or not all(has_tag(cell, "blank") for cell in tasks):
        yield f"it has {len(tasks)} tasks in a cell that is blank; one is wanted"


def edition_problems(notebook) -> list[str]:
    """The answers that the learner's edition of a lab gives away."""
    edition = learner_edition(copy.deepcopy(notebook), "")
    problems = []
    for cell in edition.cells:
        if has_tag(cell, "solution"):
            problems.append(f"{where(cell)} is a solution")
        if cell.cell_type == "code":
            if cell.outputs or cell.execution_count:
                problems.append(f"{where(cell)} has an output")
            try:
                left = guesses(cell)
            except SyntaxError:
                problems.append(
                    f"{where(cell)} is no Python once its guess is gone: write it on one line"
                )
                continue
            given = [
                name
                for name, value in left.items()
                if not (isinstance(value, ast.Constant) and value.value is ...)
            ]
            problems += [f"{where(cell)} gives the guess {name} away" for name in given]
    return problems


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_a_lab_has_the_form(lab):
    """Must catch: what `form_problems` and `code_problems` list; each is tried below."""
    notebook = nbformat.read(lab, as_version=4)
    problems = form_problems(notebook) + code_problems(notebook)
    if not has_paths(code_cells(notebook)):
        problems.append("its cells are on no path: core, more and task are missing")
    assert not problems, f"{lab.name}: " + "; ".join(problems)


# ---------------------------------------------------------------- the technique in the cells

# Of each lab the modules that it is about, as the chapter names them.
TECHNIQUE = {
    "01-does-it-fit": "shardlab.gpt",
    "02-hardware": "ranklab.measure",
    "03-where-the-memory-goes": "ranklab.measure",
    "04-collectives": "shardlab.collectives",
    "05-data-parallelism": "shardlab.data_parallel",
    "06-zero": "shardlab.zero",
    "07-tensor-parallelism": "shardlab.tensor_parallel",
    "08-pipelines": "shardlab.pipelines",
    "09-mixed-precision": "shardlab.mixed_precision",
    "10-activation-checkpointing": "shardlab.recompute",
    "11-where-the-time-goes": "ranklab.measure",
    "12-feeding-the-gpu": "shardlab.data_loading",
    "13-kernels": "shardlab.kernels",
    "14-long-sequences": "shardlab.context_parallel",
    "15-mixture-of-experts": "shardlab.experts",
    "16-sending-less": "shardlab.compression",
    "20-which-layout": "shardlab",
    "21-slow-to-fast": "shardlab.zero",
}
TOPIC_LINES = 90  # of topics/<topic>/lab.py


def calls_of_technique(notebook, technique: str) -> list[str]:
    """The names of the technique that cells which a reader sees call: a class or a function that
    the lab imports from its modules, or one of a module that it imports."""
    imported, called = set(), []
    for cell in code_cells(notebook):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    whole = f"{node.module}.{name.name}"
                    if f"{whole}.".startswith(f"{technique}."):
                        imported.add(name.asname or name.name)
        if any(has_tag(cell, tag) for tag in ("install", "hide-input", "solution")):
            continue
        for node in ast.walk(parsed(cell.source)):
            function = getattr(node, "func", None)
            while isinstance(function, ast.Attribute):
                function = function.value
            if isinstance(node, ast.Call) and getattr(function, "id", "") in imported:
                called.append(ast.unparse(node.func))
    return called


def topic_of(notebook) -> Path | None:
    """The lab.py that a lab imports."""
    for cell in code_cells(notebook):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.ImportFrom) and any(one.name == "lab" for one in node.names):
                return Path(find_spec(f"{node.module}.lab").origin)
    return None


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_a_lab_calls_its_technique(lab):
    """Must catch: a lab whose cells watch a helper at work that shards, splits or sends for them; a
    lab.py that holds the technique."""
    notebook = nbformat.read(lab, as_version=4)
    topic = topic_of(notebook)
    short = topic is None or len(topic.read_text("utf-8").splitlines()) <= TOPIC_LINES
    done = bool(calls_of_technique(notebook, TECHNIQUE[lab.stem])) and short
    assert done, (lab.stem, topic)


def test_a_call_of_the_technique_is_seen():
    """Must catch: an import alone, a call in a folded cell or in a solution, a method of another
    object taken for a call of the technique; a call through a module overlooked."""

    def called(source, *tags):
        setup = new_code_cell("from shardlab import zero\nfrom shardlab.zero.core import Shards")
        return calls_of_technique(
            new_notebook(cells=[setup, new_code_cell(source, metadata={"tags": [*tags]})]),
            "shardlab.zero",
        )

    assert called("def f(model):\n    return zero.shard(model, stage=1)") == ["zero.shard"]
    assert called("%%ranks 4\nShards(2)") == ["Shards"]
    assert called("zero.shard") == [] == called("model.zero.shard()")
    assert called("zero.shard()", "solution") == [] == called("zero.shard()", "hide-input")


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_the_learners_edition_gives_nothing_away(lab):
    """Must catch: a guess on a line that the edition does not blank, a solution without its tag on
    the text before it."""
    assert edition_problems(nbformat.read(lab, as_version=4)) == []


# ---------------------------------------------------------------- what the tests above can see


def answered(text):
    return dict(
        execution_count=1,
        outputs=[new_output("execute_result", data={"text/markdown": text}, execution_count=1)],
    )


def small_lab():
    """A lab of the right form: the shortest that there is, filled up with text."""
    lab = jupytext.reads(sample("lab.md"), "md:myst")
    lab.cells[1].source = INSTALL_CELL
    asked = "states(parameters=1_000, tokens=50, flops_per_second=2000.0)"
    output(9, f"not yet: {asked} gave Ellipsis: fill in the blank.")(lab)
    output(11, f"right: {training_seconds_from_rate.right}")(lab)
    solved = sum(has_tag(cell, "solution") for cell in lab.cells)
    fill = CELLS.start + solved - len(lab.cells)
    lab.cells[-2:-2] = [new_markdown_cell("More.") for _ in range(fill)]
    return lab


def drop(number):
    return lambda lab: lab.cells.pop(number)


def source(number, old, new):
    def spoil(lab):
        assert old in lab.cells[number].source
        lab.cells[number].source = lab.cells[number].source.replace(old, new)

    return spoil


def tags(number, *given):
    return lambda lab: lab.cells[number].metadata.update(tags=list(given))


def output(number, text):
    return lambda lab: lab.cells[number].update(answered(text))


def add(number, *cells):
    def spoil(lab):
        lab.cells[number:number] = cells

    return spoil


def lab_with_paths():
    """The small lab, with two exercises and a bug hunt on its core, and a task among the rest."""
    lab = small_lab()
    for cell, tag in ((5, "core"), (7, "core"), (9, "core"), (13, "more"), (-1, "core")):
        lab.cells[cell].metadata["tags"] = [*lab.cells[cell].metadata.get("tags", []), tag]
    lab.cells[12].source = "## More: What if it were larger?"
    lab.cells[14:-2] = more = jupytext.reads(sample("paths.md"), "md:myst").cells
    for cell in more:
        if has_tag(cell, "check"):
            solved = has_tag(cell, "solution")
            cell.update(answered("right: so it is." if solved else "not yet: fill in the blank."))
    return lab


def tag_too(number, tag):
    return lambda lab: lab.cells[number].metadata["tags"].append(tag)


def untag(number, tag):
    return lambda lab: lab.cells[number].metadata["tags"].remove(tag)


def test_a_cell_on_ranks_is_a_cell():
    """Must catch: a lab refused because of a line that is no Python; names of the ranks taken for
    the notebook's; code on ranks that no rule looks at."""
    cell = new_code_cell("%%ranks 4\nx = rank + kept_by_nobody\nprint(x)", metadata={"tags": []})
    more = [new_markdown_cell("More."), cell]
    lab = small_lab()
    lab.cells[20:22] = more
    assert form_problems(lab) == [] == code_problems(lab)
    cell.source = cell.source.replace("x = ", "x=")
    assert "is not as ruff formats it" in "".join(code_problems(lab))


BREACHES = [  # (rule, what is done to the lab, part of what the rule says)
    (part.split("\n", 1)[0], *breach)
    for part in (Path(__file__).with_name("breaches.md").read_text("utf-8")).split("\n## ")[1:]
    for breach in re.findall(r"^- `(.*)` => (.*)$", part, re.M)
]


@pytest.mark.parametrize("rule, spoil, sentence", BREACHES)
def test_each_breach_is_seen(rule, spoil, sentence):
    """breaches.md has them. Must catch: one of the rules taken out; ruff that is run on no cell; an
    edition compared with nothing."""
    lab = lab_with_paths() if rule == "path_problems" else small_lab()
    eval(spoil)(lab)
    given = (lab, code_cells(lab)) if rule == "path_problems" else (lab,)
    found = list(globals()[rule](*given))
    assert any(sentence in problem for problem in found), found


def test_a_core_cell_that_needs_more():
    """Must catch: what a cell of more gives, asked for on the short path; a rule that always
    complains; a table without rows."""
    lab = lab_with_paths()
    assert list(path_problems(lab, code_cells(lab))) == [] and len(BREACHES) == 57
    tag_too(5, "more")(lab), untag(5, "core")(lab)
    (problem,) = path_problems(lab, code_cells(lab))
    assert "is core and uses kept, which only a cell of more gives it" in problem
