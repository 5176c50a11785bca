"""Buttons that lead out of the book, with an address and without: tiny books are built and read."""

import base64
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from packaging.requirements import Requirement
from programs import ran
from small_books import ROOT, WHEEL, real_book

from bookkit import address
from bookkit.address import resolve_address
from bookkit.build import build_book
from bookkit.learner import INSTALL_CELL, has_tag, learner_edition
from coursekit.recordings.recordings import read_all

FORK = "https://github.com/ada/sharding-book"


def stored_lab():
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    answer = new_output("execute_result", {"text/plain": "42"}, execution_count=2)
    cells = [
        new_markdown_cell("# A tiny lab"),
        new_code_cell(INSTALL_CELL, metadata={"tags": ["install"]}, execution_count=1),
        new_code_cell("6 * 7", execution_count=2, outputs=[answer]),
        new_code_cell("answer = 42", metadata={"tags": ["solution"]}, execution_count=3),
    ]
    return new_notebook(metadata={"kernelspec": kernel}, cells=cells)


def links(page: Path, start: str = "") -> list[dict[str, str]]:
    """Attributes of a page's links to addresses that begin so; `name` is what a link is called."""
    begins = f'[href^="{start}"]' if start else "[href]"
    found = BeautifulSoup(page.read_text("utf-8"), "html.parser").select(f"a{begins}")
    return [a.attrs | dict(name=(a.get("aria-label", "") + a.get_text()).strip()) for a in found]


def build(folder: Path, address: str, **environment: str) -> Path:
    """Build a book of a front page, a chapter and its lab in `folder`; return the folder of its
    pages."""
    source = real_book(
        folder / "book",
        **{
            "_address.yml": address,
            "chapters/tiny": "---\nlab: labs/tiny\n---\n# A tiny chapter\n\nRead on.\n",
            "labs/tiny.ipynb": nbformat.writes(stored_lab()),
        },
    )
    pages = folder / "pages" / "html"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GITHUB_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        build_book(source, pages)
    return pages


@pytest.fixture(scope="module")
def without_address(tmp_path_factory):
    return build(tmp_path_factory.mktemp("without"), (ROOT / "_address.yml").read_text())


@pytest.fixture(scope="module")
def with_address(tmp_path_factory):
    return build(
        tmp_path_factory.mktemp("with"),
        f"repository: {FORK}\nlearner_branch: learner\nbook: https://ada.example/book/\n",
    )


def saved_notebook(link: dict) -> nbformat.NotebookNode:
    kind, data = link["href"].split(";base64,")
    assert kind == "data:application/x-ipynb+json"
    return nbformat.reads(base64.b64decode(data).decode(), as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "chapters/tiny.html", "labs/tiny.html"])
def test_without_an_address_no_link_leads_out(without_address, page):
    """Must catch: a repository, issue or Colab button that is there although nobody said where it
    should lead."""
    assert links(without_address / page, "http") == []


@pytest.mark.slow
def test_without_an_address_a_lab_says_how_to_run_it(without_address):
    """Must catch: the sentence, the wheel or its link missing where they are the only way to
    Colab."""
    page = without_address / "labs" / "tiny.html"
    (link,) = links(page, "../downloads/")
    assert link["download"] == WHEEL
    assert zipfile.is_zipfile((page.parent / link["href"]).resolve())
    assert "upload both" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "chapters/tiny.html", "labs/tiny.html"])
def test_with_an_address_every_page_leads_out(with_address, page):
    """Must catch: the settings of _address.yml not reaching the theme; a Colab link to the solved
    lab, to another branch, or missing from the chapter; the address of the front page on every
    page, two slashes in a row."""
    path = with_address / page
    assert FORK in [link["href"] for link in links(path, "http")]
    assert links(path, f"{FORK}/issues/new")
    colab = [link["href"] for link in links(path, "https://colab.research.google.com/")]
    notebook = "github/ada/sharding-book/blob/learner/tiny.ipynb"
    expected = [f"https://colab.research.google.com/{notebook}"] * (page != "index.html")
    assert colab == expected
    # the file that the workflow pushes to that branch
    assert (with_address / "downloads" / "tiny.ipynb").exists()
    named = f'<meta property="og:url" content="https://ada.example/book/{page}"/>'
    assert named in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("book", ["without_address", "with_address"])
def test_a_chapter_leads_to_its_lab(request, book):
    """Must catch: a chapter whose lab cannot be found, or one that carries the whole notebook (a
    chapter has no bytes for that)."""
    page = request.getfixturevalue(book) / "chapters" / "tiny.html"
    named = [link["name"] for link in links(page, "../labs/tiny.html")]
    assert "The lab: read it, download it" in named and links(page, "data:") == []


@pytest.mark.slow
@pytest.mark.parametrize("book", ["without_address", "with_address"])
def test_the_notebook_that_is_saved_is_the_learners_edition(request, book):
    """Must catch: solutions or outputs handed out; the install cell not told where the repository
    is; bytes spent on white space."""
    (link,) = links(request.getfixturevalue(book) / "labs" / "tiny.html", "data:")
    notebook = saved_notebook(link)
    assert b"\n " not in base64.b64decode(link["href"].split(",")[1])
    nbformat.validate(notebook)
    assert link["download"] == "tiny.ipynb"
    assert [cell.source for cell in notebook.cells[2:]] == ["6 * 7"]
    assert all(not cell.get("outputs") for cell in notebook.cells)
    filled_in = 'SHARDLAB = "shardlab @ git+https://github.com/ada/sharding-book@main"'
    assert (filled_in in notebook.cells[1].source) == (book == "with_address")


def test_guesses_are_blank_in_the_learners_edition():
    """Must catch: the stored guess handed out; its comment or any other line of the cell lost."""
    source = "my_bytes = {}  # for all of them\nmy_days = {}\nother = 4  # stays\nlock(my_days)"
    guess = new_code_cell(source.format("16 * 124", "3.5"), metadata={"tags": ["predict"]})
    notebook = new_notebook(cells=[guess, new_code_cell("my_bytes = 7")])
    predict, other = learner_edition(notebook, "").cells
    assert predict.source == source.format("...", "...")
    assert other.source == "my_bytes = 7"


def test_the_first_cells_are_folded_wherever_a_notebook_runs():
    """Must catch: the install cell unfolded in JupyterLab and VS Code (source_hidden) or on
    Colab (a form with a title); a cell of the lesson folded."""
    lab = stored_lab()
    install = next(cell for cell in lab.cells if has_tag(cell, "install"))
    install.metadata["tags"] = ["install", "hide-input"]
    for cell in learner_edition(lab, "").cells:
        folded = has_tag(cell, "install")
        assert ("cellView" in cell.metadata) == folded
        assert cell.source.startswith("# @title Install shardlab") == folded
        if folded:
            assert cell.metadata["jupyter"] == {"source_hidden": True}


def test_a_lab_with_parts_for_a_gpu_opens_on_one():
    """Must catch: Colab's button opens a CPU for a lab with parts that need a GPU, or takes a GPU
    for a lab that has none; the parts left away with the metadata."""
    for needs, expected in ((["copies"], "GPU"), ([], None), (None, None)):
        lab = stored_lab()
        lab.metadata["shardlab"] = {"ranks": 2} | ({} if needs is None else {"needs_gpu": needs})
        metadata = learner_edition(lab, "").metadata
        assert metadata.get("accelerator") == expected
        assert metadata.get("colab") == (expected and {"gpuType": "T4"})
        assert metadata.shardlab == lab.metadata.shardlab and "colab" not in lab.metadata


@pytest.mark.slow
def test_every_link_has_a_name(with_address):
    """Must catch: a button that a screen reader announces as nothing (an icon without a label)."""
    for page in with_address.rglob("*.html"):
        assert all(link["name"] for link in links(page)), page.name


def test_downloads_work_from_a_disk(browser, without_address):
    """Must catch: a plain link to the notebook, which a browser shows as text when the book is read
    from a disk."""
    tab = browser.new_page()
    tab.goto((without_address / "labs" / "tiny.html").as_uri())
    for name in ("tiny.ipynb", WHEEL):
        with tab.expect_download() as download:
            tab.locator(f'a[download="{name}"]').click()
        assert download.value.suggested_filename == name
        assert download.value.failure() is None
    tab.close()


def run_install_cell(
    cell: str, folder: Path, *, here: str = "", fails: bool = False
) -> subprocess.CompletedProcess:
    """Run `cell` in `folder` on a Python where shardlab is missing, or `here` in that version;
    print instead of starting pip."""
    script = (
        "import importlib.metadata, importlib.util, subprocess\nfrom types import SimpleNamespace\n"
        f"importlib.util.find_spec = lambda name: {here!r} or None\n"
        f"importlib.metadata.distributions = lambda name: [SimpleNamespace(version={here!r})]"
        f" if {here!r} else []\n"
        "def pip(command):\n    print(*command[1:], sep='\\n')\n"
        f"    return SimpleNamespace(returncode={int(fails)})\n"
        "subprocess.run = pip\n" + cell
    )
    return ran(sys.executable, "-c", script, cwd=folder)


VERSION = WHEEL.split("-")[1]
ASKS = "upload the wheel beside this notebook, then run this cell again"
OF_FORK = f"shardlab @ git+{FORK}@main"
# (wheel beside, version here, repository, pip fails) -> (printed, last line of an error)
INSTALLS = {
    "a wheel downloaded twice": ((WHEEL.replace(".whl", " (1).whl"), "", "", False), (WHEEL, "")),
    "on another system": ((WHEEL.replace(".whl", "-1.whl"), "", "", False), (WHEEL, "")),
    "copied": ((WHEEL.replace(".whl", " - Copy.whl"), "", "", False), (WHEEL, "")),
    "nothing to do": (("", "0.0.9", "", False), ("", "")),
    "the same version": ((WHEEL, VERSION, "", False), ("", "")),
    "last term's": (
        (WHEEL, "0.0.9", "", False),
        (f"shardlab 0.0.9 is here; installing {VERSION}\n", ""),
    ),
    "no network": ((WHEEL, "", "", True), ("--find-links={folder}\n", "beside this notebook")),
    "a damaged wheel": ((WHEEL, "0.0.9", "", True), ("goes on with shardlab 0.0.9\n", "")),
    "a name without a version": (("shardlab-newest.whl", "", "", False), ("", ASKS)),
    "nothing there": (("", "", "", False), ("", ASKS)),
    "the repository": (("", "", OF_FORK, False), (f"\n{OF_FORK}\n", "")),
    "a wheel before the repository": ((WHEEL, "", OF_FORK, False), (f"{{folder}}/{WHEEL}\n", "")),
}


@pytest.mark.parametrize("case", INSTALLS)
def test_what_the_install_cell_installs(tmp_path, case):
    """Must catch: a name that pip refuses, handed to pip; last term's shardlab taken for this
    term's; pip started, or a line printed, where nothing is to do; twenty lines of
    CalledProcessError; a failure that nobody hears; the repository instead of the wheel; a wheel
    refused, or without a version, that ends or misleads a lab."""
    (beside, here, repository, fails), (printed, error) = INSTALLS[case]
    if beside:
        (tmp_path / beside).write_bytes(b"a wheel")
    cell = learner_edition(stored_lab(), repository).cells[1].source
    done = run_install_cell(cell, tmp_path, here=here, fails=fails)
    assert printed.format(folder=tmp_path) in done.stdout and (printed or not done.stdout)
    assert error in (done.stderr.splitlines() or [""])[-1] and bool(error) == bool(done.returncode)
    if printed and not (error or repository or fails):
        source = Path(done.stdout.splitlines()[-1])
        assert source.name == WHEEL and source.read_bytes() == b"a wheel"


def test_the_requirement_is_one_that_pip_can_parse():
    """Must catch: a requirement with a branch where pip wants a commit, or without a name."""
    requirement = Requirement(resolve_address({"repository": FORK}, {}).requirement)
    assert (requirement.name, requirement.url) == ("shardlab", f"git+{FORK}@main")


def test_the_install_cell_finds_a_wheel_among_kaggles_inputs(tmp_path):
    """Must catch: a cell that looks beside the notebook only; on Kaggle uploads are elsewhere."""
    inputs, work = tmp_path / "input" / "wheels", tmp_path / "working"
    inputs.mkdir(parents=True), work.mkdir()
    (inputs / WHEEL).touch()
    assert "/kaggle/input" in INSTALL_CELL
    cell = INSTALL_CELL.replace("/kaggle/input", str(tmp_path / "input"))
    assert run_install_cell(cell, work).stdout.splitlines()[-1] == str(inputs / WHEEL)


@pytest.mark.slow
def test_what_the_wheel_holds():
    """Must catch: a wheel without modules, data or recordings; one that brings a learner a Sphinx
    extension."""
    (wheel,) = (ROOT / "build" / "wheel").glob("shardlab-*.whl")  # made by make book
    held = zipfile.ZipFile(wheel).namelist()
    data = [f"coursekit/data/{name}" for name in ("hardware.csv", "assignments/zero/zero.py")]
    wanted = {"shardlab/data/alice.txt", "coursekit/topics/zero/mistakes.md", *data}
    assert wanted <= {*held} and not [name for name in held if name.startswith("bookkit")]
    recorded = {name.rpartition("/")[2] for name in held if "/measured/" in name}
    assert {found.file_name for found in read_all(ROOT / "measured")} <= recorded


def test_commands_of_the_ways_to_run_a_lab_are_code():
    """Must catch: backquotes on the page."""
    assert all(line.count("`") % 2 == 0 for line in address.WAYS.splitlines())
