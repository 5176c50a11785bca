"""Changes that make a page stale: the book is built twice, with a change in between; and its
parts."""

import gc
import sys
import weakref

import pytest
from small_books import real_book

import bookkit
import shardlab
from bookkit.build import build_book, sources_digest

RECORDED = """\
# Recorded

```{code-cell} python3
from pathlib import Path
print("recorded:", Path("../measured/gpu.json").read_text())
```
"""
NOTEBOOK = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n"


class Gone:
    """An object that a proxy outlives."""


@pytest.fixture
def garbage():
    """A proxy of what is gone, in a cycle that nobody has collected: any library may leave one."""
    gc.disable()
    waiting = [weakref.proxy(Gone())]
    waiting.append(waiting)
    del waiting
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("garbage")
def test_a_renamed_page_and_a_new_recording(tmp_path):
    """Must catch: the page under its old name still in the built book, found by search engines and
    old links; another version on a page than the package's; the execution cache, which knows only
    the cells, handing out the numbers of an old recording; a build that meets garbage."""
    book, pages = tmp_path / "book", tmp_path / "html"
    index, shows = "# A book\n\nVersion {{ version }}.\n", NOTEBOOK + RECORDED
    for page, value in (("first", "17 GB"), ("second", "18 GB")):
        (book / "chapters" / "first.md").unlink(missing_ok=True)
        files = {"index": index, "chapters/shows": shows, f"chapters/{page}": "# A page\n"}
        build_book(real_book(book, **files, **{"measured/gpu.json": value}), pages)
        assert f"recorded: {value}" in (pages / "chapters" / "shows.html").read_text("utf-8")
        left = sorted(path.name for path in (pages / "chapters").iterdir())
        assert left == [f"{page}.html", "shows.html"]
    assert f"Version {shardlab.__version__}." in (pages / "index.html").read_text("utf-8")
    assert (pages / "search.html").exists()


@pytest.mark.parametrize(
    "name", ["model.py", "data/gpus.csv", "data/presets.md", "static/book.css"]
)
def test_the_digest_sees_every_change(tmp_path, name):
    """Must catch: a kind of file left out of the digest; a renamed file that is taken for the
    same."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    digests = [sources_digest(tmp_path)]
    for text in ("", "one", "two"):
        path.write_text(text)
        digests.append(sources_digest(tmp_path))
    path.rename(path.with_stem("other"))
    digests.append(sources_digest(tmp_path))
    assert len(set(digests)) == len(digests)
    assert sources_digest(tmp_path) == digests[-1], "without a change it stays as it is"


def test_a_card_is_set_up_without_an_entry(tmp_path, monkeypatch):
    """Must catch: a list of cards; a helper without a setup among the parts; a part that stands
    after the cards set up among them."""
    (tmp_path / "pretended_card.py").write_text("def setup(app):\n    pass\n")
    (tmp_path / "pretended_helper.py").write_text("")
    monkeypatch.setattr(bookkit, "__path__", [*bookkit.__path__, str(tmp_path)])
    try:
        names = [part.__name__.removeprefix("bookkit.") for part in bookkit.parts()]
    finally:
        for name in ("pretended_card", "pretended_helper"):
            sys.modules.pop(f"bookkit.{name}", None)
            vars(bookkit).pop(name, None)
    before, after = len(bookkit.BEFORE_CARDS), len(bookkit.AFTER_CARDS)
    assert (*names[:before], *names[-after:]) == (*bookkit.BEFORE_CARDS, *bookkit.AFTER_CARDS)
    assert {"explorer", "stepper", "pretended_card"} <= set(names[before:-after])
    assert "pretended_helper" not in names and len(names) == len(set(names))
