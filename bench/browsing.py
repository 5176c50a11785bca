"""The parts that look at the built book in a browser."""

import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.building import pages_of_the_book
from bench.pages import (
    Reader,
    cards_of,
    measure_blocking,
    measure_exactness,
    measure_loads,
    measure_redraws,
    measure_weight,
)
from bench.sample import build_sample
from coursekit.recordings.races import Result

PAGES = ("exact", "load", "redraw", "blocking", "weight")


class CannotBrowse(RuntimeError):
    """There is no browser, or no book: one sentence."""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def load_module(name: str, path: Path):
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_pages(
    parts: list[str], root: Path, names: list[str] | None = None
) -> tuple[list[Result], str]:
    """(results of these parts, the browser's version). `names` are the pages that may block, all
    of them by default. Raises CannotBrowse."""
    # the tests' helpers and their configurations
    sys.path[:0] = [str(root / "tests" / "browser"), str(root / "tests")]
    settings = load_module("browser_settings", root / "tests" / "conftest.py")
    book, chromium = root / "build" / "html", settings.find_browser()
    if not chromium:
        raise CannotBrowse(settings.HOW_TO_GET_ONE)
    if not (book / "index.html").exists():
        raise CannotBrowse("the book is not built: run make book")
    from visit import page_paths

    paths = page_paths(book)
    chosen = [f"{name.removesuffix('.html')}.html" for name in names or paths]
    if unknown := sorted(set(chosen) - set(paths)):
        raise CannotBrowse(f"the book has no page {', '.join(unknown)}; it has {', '.join(paths)}")

    results = []
    with (
        sync_playwright() as playwright,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(book))) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=settings.FLAGS)
        homes = {"http": f"http://127.0.0.1:{server.server_port}", "file": book.as_uri()}
        for part in parts:
            print(f"bench:  {part}", file=sys.stderr, flush=True)
            if part == "blocking":
                pages = {path: book / path for path in chosen}
                results += measure_blocking(Reader(browser), pages)
            else:
                results += measure_part(part, browser, root, book, homes)
        version = browser.version
        browser.close()
        server.shutdown()
    return results, version


def measure_part(part: str, browser, root: Path, book: Path, homes: dict) -> list[Result]:
    reader = Reader(browser)
    if part == "exact":
        return measure_exactness(reader, homes, book)
    if part == "load":
        sample, chapters = build_sample(root, root / "build" / "bench-book"), book / "chapters"
        pages = {
            "40 display and 80 inline formulas": (sample["with-formulas"], True),
            "the same without formulas": (sample["without-formulas"], False),
            "the same with the explorer last": (sample["explorer-last"], False),
            "front page": (book / "index.html", False),
            "chapter 1": (book / f"{pages_of_the_book(root)[0]}.html", False),
            "where the memory goes": (chapters / "where-the-memory-goes.html", False),
        }
        return measure_loads(reader, pages)
    if part == "redraw":
        return measure_redraws(reader, cards_of(book))
    from visit import page_paths

    folders = (root / "src" / of / "static" for of in ("bookkit", "coursekit/show"))
    our_files = {path.name for folder in folders for path in folder.iterdir()} | {"palette.css"}
    return measure_weight(browser, book, page_paths(book), our_files)
