"""Labs are stored as a run of their text left them, and a new run finds the same. nbval compares
the cells tagged `nbval-check-output`, and passes a notebook that never ran: what is stored is
looked at first."""

import ast
import inspect
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from shutil import copytree, ignore_patterns
from types import ModuleType

import nbformat
import pytest
import store_lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pages import ROOT
from told import from_told

from bookkit.learner import INSTALL_CELL, has_tag
from coursekit.show.in_words import PLOTLY, figure_in_words

HERE = str(Path(__file__).resolve().parent)  # where nbval finds its plugin
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
CELL_TIMEOUT_SECONDS = 600  # against a cell that hangs; a busy machine may well take a tenth of it
LAB_TIMEOUT_SECONDS = 1200
SIZE_LIMIT_BYTES = 600 * 1024
COMPARED = "nbval-check-output"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def stored_problems(notebook, size_bytes: int) -> list[str]:
    """The faults of a lab as it is stored, one sentence each."""
    problems = []
    cells = code_cells(notebook)
    counts = [cell.execution_count for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        problems.append(f"it was not run from top to bottom: the execution counts are {counts}")
    for cell in cells:
        where = f"cell {cell.execution_count} ({cell.source.splitlines()[0][:40]!r})"
        if any(output.output_type == "error" for output in cell.outputs) and not has_tag(
            cell, "raises-exception"
        ):
            problems.append(f"{where} is stored with an error")
        if any(output.get("name") == "stderr" for output in cell.outputs):
            problems.append(
                f"{where} is stored with output on stderr, which differs between machines"
            )
        shown = [output.data for output in cell.outputs if PLOTLY in output.get("data", ())]
        if any(data.get("text/plain") != figure_in_words(data[PLOTLY]) for data in shown):
            problems.append(f"{where} is stored with a figure that is not said in words")
        if has_tag(cell, COMPARED) and not cell.outputs:
            problems.append(f"{where} is tagged {COMPARED} and has no output to compare")
    if not any(has_tag(cell, COMPARED) for cell in cells):
        problems.append(f"no cell is tagged {COMPARED}, so a run is compared with nothing")
    if [cell.source for cell in cells if has_tag(cell, "install")] != [INSTALL_CELL] or cells[
        0
    ].source != INSTALL_CELL:
        problems.append(
            "its first code cell is not the install cell (bookkit.learner.INSTALL_CELL, tagged"
            " install)"
        )
    if size_bytes > SIZE_LIMIT_BYTES:
        problems.append(
            f"it has {size_bytes // 1024} KiB; {SIZE_LIMIT_BYTES // 1024} are the limit"
        )
    return problems


def rerun(lab: Path) -> tuple[int, list[str], str]:
    """Run `lab` with nbval in its folder: (number of cells run, names of those that failed, nbval's
    report)."""
    report = lab.with_suffix(".xml")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", lab.name, "--nbval-lax", "--nbval-current-env"),
            *("--nbval-cell-timeout", str(CELL_TIMEOUT_SECONDS), "--junit-xml", report.name),
            *("--nbval-kernel-startup-timeout", str(CELL_TIMEOUT_SECONDS)),
            *("--rootdir", ".", "-c", os.devnull, "-p", "no:cacheprovider"),
            *("-p", "nbval_of_what_is_kept", "--color=no", "--tb=short", "-q"),
        ],
        cwd=lab.parent,
        timeout=LAB_TIMEOUT_SECONDS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # What is stored comes from a CPU. Threads of a lab that runs beside other work wait for
        # each other longer than they work.
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])),
        },
    )
    if not report.exists():
        return 0, ["(nbval did not start)"], result.stdout
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        case.get("name")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if result.returncode and not failed:
        failed = [f"(nbval ended with {result.returncode})"]
    # without IPython's colours
    return len(cases), failed, re.sub(r"\x1b\[[\d;]*m", "", result.stdout)


# ---------------------------------------------------------------- the labs


def test_there_is_a_lab():
    """Must catch: the folder moved or renamed, so that all tests below pass on nothing; a text
    without its notebook, or a notebook without its text."""
    assert LABS, "no labs/*.ipynb"
    assert [lab.stem for lab in LABS] == sorted(path.stem for path in (ROOT / "labs").glob("*.md"))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_a_notebook_is_what_its_text_says(lab):
    """Must catch: a text edited and not stored; a notebook edited, whose next `make store` would
    drop the edit."""
    found = store_lab.difference(lab.with_suffix(".md"), lab)
    assert not found, (
        f"{found}: make store LAB=labs/{lab.stem}.md takes the text; where the notebook is right,"
        f" python tools/store_lab.py --text labs/{lab.stem}.ipynb writes the text from it"
    )


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_a_lab_is_stored_as_a_run_left_it(lab):
    """Must catch: what `stored_problems` lists; each is tried below."""
    problems = stored_problems(nbformat.read(lab, as_version=4), lab.stat().st_size)
    assert not problems, f"{lab.name}: " + "; ".join(problems)


def of_the_core(cells):
    """The cells without those tagged `more`. A solution goes with its exercise."""
    rest = False
    for cell in cells:
        rest = has_tag(cell, "more") or rest and has_tag(cell, "solution")
        if not rest:
            yield cell


OURS = ("shardlab", "ranklab", "coursekit")
LIBRARIES = """builtins.str builtins.list builtins.dict builtins.set pathlib.Path time random os
mmap mmap.mmap signal logging logging.Logger torch torch.Tensor torch.nn torch.nn.functional
torch.nn.utils torch.nn.Module torch.optim torch.optim.Optimizer torch.amp.GradScaler
torch.autograd torch.autograd.Function torch.distributed torch.distributed.ReduceOp torch.profiler
torch.compiler torch.library torch.library.CustomOpDef torch.utils.flop_counter.FlopCounterMode"""


def named_in(code: str) -> set[str]:
    """Names of functions, classes and attributes, of a module's values and a class's fields."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        if isinstance(node, ast.Module | ast.ClassDef):
            values = [one for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign)]
            inside = [one for value in values for one in ast.walk(value)]
            found |= {one.id for one in inside if isinstance(one, ast.Name)}
    return found


@cache
def attributes_known() -> set[str]:
    """Attributes of our packages, and of the libraries' objects in labs."""
    files = (file for one in OURS for file in (ROOT / "src" / one).rglob("*.py"))
    return {"_asdict", "_mmap"}.union(
        *(dir(resolve_name(one)) for one in LIBRARIES.split()),
        *(named_in(file.read_text("utf-8")) for file in files),
    )


def missing_names(code: str) -> list[str]:
    """Names that the code asks of our modules in vain: imported, as attributes of a module, or as
    arguments; and attributes that nothing has."""
    nodes, known, missing = [*ast.walk(ast.parse(code))], {}, []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
            for alias in node.names:
                try:
                    exec(f"from {node.module} import {alias.name} as found", taken := {})
                except ImportError:
                    missing.append(f"{node.module}.{alias.name}")
                else:
                    known[alias.asname or alias.name] = taken["found"]
        elif isinstance(node, ast.Import):
            ours = [one for one in node.names if one.asname and one.name.split(".")[0] in OURS]
            known |= {one.asname: import_module(one.name) for one in ours}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.pop(node.name, None)  # the learner's own
    for node in nodes:
        one = known.get(getattr(getattr(node, "value", None), "id", None))
        if isinstance(node, ast.Attribute) and isinstance(one, ModuleType):
            missing += [f"{one.__name__}.{node.attr}"] * (not hasattr(one, node.attr))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in known:
            named = dict.fromkeys(given.arg for given in node.keywords if given.arg)
            try:
                inspect.signature(known[node.func.id]).bind_partial(**named)
            except TypeError as error:
                missing.append(f"{node.func.id}: {error}")
    there = attributes_known() | named_in(code)
    asked = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return missing + sorted(asked - there)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_a_lab_names_what_there_is(lab):
    """Must catch: a name, an attribute such as clock.Clock of lab 10 or the planner's
    Candidate.tokens_per_second_per_gpu, or an argument by name, that the packages no longer have
    and a lab uses that runs at night."""
    cells = code_cells(nbformat.read(lab, as_version=4))
    sources = (cell.source for cell in cells if not has_tag(cell, "install"))
    lines = [line for cell in sources for line in cell.splitlines() if line[:1] not in ("%", "!")]
    assert missing_names("\n".join(lines)) == []


def test_a_name_that_went_is_found():
    """Must catch: a check that looks at no import, no argument, no attribute of a module or of a
    result."""
    lost = "from ranklab.measure import clock\nclock.Clock()\nfrom shardlab import nothing\n"
    lost += "from coursekit.lab import far\nfar(near=1).tokens_a_second"
    named = sorted(one.partition(":")[0] for one in missing_names(lost))
    lost = "Clock far ranklab.measure.clock.Clock shardlab.nothing tokens_a_second"
    assert named == lost.split()


# By day this one: ranks that shard; the others' names are looked up above.
BY_DAY = "06"


@pytest.mark.labs
@pytest.mark.parametrize(
    "lab, path",
    [
        # any worker may take the next lab, while others wait for their links
        pytest.param(
            lab, path, marks=[pytest.mark.xdist_group(lab.stem), *night], id=f"{lab.stem}-{path}"
        )
        for lab in LABS
        for path in ("core", "all")
        for night in [[pytest.mark.nightly] * (path == "all" or lab.stem[:2] != BY_DAY)]
    ],
)
def test_a_lab_runs_again_and_finds_the_same(lab, path, tmp_path):
    """Core cells by day, all at night. Must catch: a change in shardlab that breaks a lab or
    changes a compared output."""
    notebook = nbformat.read(lab, as_version=4)
    if path == "core":
        notebook.cells = list(of_the_core(code_cells(notebook)))
    copytree(
        lab.parent,
        tmp_path / "labs",
        ignore=ignore_patterns(".ipynb_checkpoints", "*.ipynb", "*.predictions.json"),
    )
    if (ROOT / "measured").is_dir():
        copytree(ROOT / "measured", tmp_path / "measured")
    copy = tmp_path / "labs" / lab.name
    nbformat.write(notebook, copy)
    count, failed, report = rerun(copy)
    assert not failed, f"{lab.name}: {', '.join(failed)} failed\n{report[-6000:]}"
    assert count == len(code_cells(notebook)) >= 10


# ---------------------------------------------------------------- what the tests above can see


def small_lab(second_output="42"):
    return new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
        cells=[
            new_markdown_cell("# A lab"),
            new_code_cell(INSTALL_CELL, metadata={"tags": ["install"]}, execution_count=1),
            new_code_cell(
                "print(6 * 7)",
                metadata={"tags": [COMPARED]},
                execution_count=2,
                outputs=[new_output("stream", name="stdout", text=second_output + "\n")],
            ),
        ],
    )


def change(cell, **parts):
    return lambda lab: lab.cells[cell].update(parts)


@from_told("spoil, sentence")
def test_each_problem_is_seen(spoil, sentence):
    """Must catch: one of the checks in `stored_problems` taken out."""
    lab = small_lab()
    spoil(lab)
    (problem,) = stored_problems(lab, 1000)
    assert sentence in problem


def test_storing_keeps_what_a_lab_needs():
    """Must catch: the needs of a lab thrown away with the rest of its metadata, so that the doctor
    thinks it runs anywhere; what no page shows kept: a guess, a table's second form, what a line of
    progress leaves, a figure's HTML; what a page shows dropped, or a figure's words."""
    lab = small_lab()
    lab.metadata["kernel"], lab.metadata["shardlab"] = {}, {"ranks": 2}
    lab.cells[2].outputs[0].text = "predicted: bytes = 4\n42\n"
    lab.cells[2].outputs += [
        new_output("stream", text="predicted: bytes = 4\n"),
        new_output("display_data", data={"text/plain": ""}),
        new_output("display_data", data={"text/plain": "6", "text/markdown": "**6**"}),
        new_output("display_data", data={"text/plain": "7"}),
        new_output("display_data", data={PLOTLY: {}, "text/plain": "8", "text/html": "<p>8</p>"}),
    ]
    store_lab.normalise(lab)
    assert lab.metadata["shardlab"] == {"ranks": 2} and "kernel" not in lab.metadata
    assert [output.get("text") or output.data for output in lab.cells[2].outputs] == [
        "42\n",
        {"text/markdown": "**6**"},
        {"text/plain": "7"},
        {PLOTLY: {}, "text/plain": "8"},
    ]
    plain = small_lab()
    store_lab.normalise(plain)
    assert "shardlab" not in plain.metadata


@from_told("spoil, sentence")
def test_a_text_makes_its_notebook_and_a_difference_is_seen(spoil, sentence, tmp_path):
    """Must catch: a tag, a magic or the needs of a lab lost on the way into the text and back; a
    text that repeats the install cell; a part that `difference` does not compare; an edited
    notebook that `make store` replaces, or an edited text that it refuses."""
    lab = small_lab()
    lab.metadata["shardlab"] = {"ranks": 2}
    solved = new_markdown_cell("A | b\n\n```\nc\n```", metadata={"tags": ["solution"]})
    lab.cells[1:1] = [solved, new_code_cell('%%ranks 2\n"""\n```\n"""\nrank')]
    store_lab.normalise(lab)
    text, notebook = tmp_path / "lab.md", tmp_path / "lab.ipynb"
    text.write_text(store_lab.text_of(lab))
    assert "importlib" not in text.read_text()
    spoil(lab)
    nbformat.write(lab, notebook)
    found = store_lab.difference(text, notebook)
    assert sentence in found and bool(found) == bool(sentence)
    later = text.stat().st_mtime + 10
    os.utime(notebook, (later, later))
    assert store_lab.edited(text, notebook) == bool(sentence)
    os.utime(notebook, (later - 20, later - 20))
    assert not store_lab.edited(text, notebook)


def test_a_number_of_a_text_comes_from_the_run(tmp_path):
    """Must catch: a number typed into a predict box that the run does not give; the printing cell
    left in the notebook; a role lost when the text is written from the notebook."""
    lab = new_notebook(
        cells=[
            new_markdown_cell("It has {ran}`1000 * size:,` bytes, each of {ran}`size` B."),
            new_code_cell("size = 4"),
            new_markdown_cell("Nothing is asked here."),
            new_code_cell("size"),
        ]
    )
    store_lab.normalise(lab)
    text = tmp_path / "lab.md"
    text.write_text(store_lab.text_of(lab))
    told = [cell.source for cell in store_lab.lab_in(text).cells]
    store_lab.store(text)
    notebook = tmp_path / "lab.ipynb"
    stored = nbformat.read(notebook, as_version=4)
    assert [cell.source for cell in stored.cells][0] == "It has 4,000 bytes, each of 4 B."
    assert [cell.execution_count for cell in code_cells(stored)] == [1, 2]
    assert stored.cells[3].outputs[0].execution_count == 2 and not store_lab.difference(
        text, notebook
    )
    assert store_lab.text_of(stored, told) == text.read_text()
    stored.cells[0].source = "It has 5,000 bytes."
    nbformat.write(stored, notebook)
    assert "another source" in store_lab.difference(text, notebook)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_an_untouched_bug_hunt_hears_its_symptom(lab):
    """Must catch: a check that names the bug when the cell is run as it stands."""
    hunting = False
    for cell in nbformat.read(lab, as_version=4).cells:
        if cell.cell_type == "markdown" and "## " in cell.source:
            hunting = "## Bug hunt" in cell.source
        elif hunting and has_tag(cell, "blank"):
            said = "".join(
                output.get("data", {}).get("text/markdown", "") for output in cell.outputs
            )
            assert said.startswith("**not yet:** as it was: "), said


def test_a_large_lab_is_seen():
    """Must catch: the limit on the size taken out."""
    (problem,) = stored_problems(small_lab(), SIZE_LIMIT_BYTES + 1)
    assert "are the limit" in problem


LONG_WORK = """from ranklab.ranks.output import LONG_SECONDS, Progress
progress = Progress([])
progress(LONG_SECONDS)
progress.end()
get_ipython().display_pub.publish({"text/html": "window.PlotlyConfig = {}"})"""


@pytest.mark.labs
def test_a_different_output_and_a_failing_cell_are_seen(tmp_path):
    """Must catch: nbval not comparing (lax mode without the tag), or its failure not reaching our
    test; a line of progress compared, so that a lab fails on a busy machine; what Plotly 5 shows
    once, so that a lab fails with Colab's versions; nbval's outcome not read, so that a lab that no
    longer runs passes."""
    lab = small_lab("41")
    lab.cells.append(new_code_cell(LONG_WORK, metadata={"tags": [COMPARED]}, execution_count=3))
    lab.cells.append(new_code_cell("raise ValueError('six by nine')", execution_count=4))
    nbformat.write(lab, tmp_path / "lab.ipynb")
    count, failed, report = rerun(tmp_path / "lab.ipynb")
    assert (count, failed) == (4, ["Cell 1", "Cell 3"]), report  # nbval counts code cells from 0
    assert "41" in report and "42" in report and "six by nine" in report, report
