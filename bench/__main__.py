"""`python -m bench [PART ...]`: measure, print a table, write build/bench.json; the races against
PyTorch into a recording too."""

import argparse
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.building import measure_building, pages_of_the_book
from bench.collectives import measure_collectives
from bench.data_parallel import measure_data_parallel
from bench.deepspeed import measure_deepspeed
from bench.formulas import measure_python
from bench.memory import measure_memory
from bench.pages import (
    Reader,
    home_of,
    measure_exactness,
    measure_loads,
    measure_redraws,
    measure_weight,
)
from bench.random_models import measure_random_models
from bench.ranks import measure_ranks
from bench.report import machine, recording, table, write
from bench.sample import build_sample
from bench.zero import measure_zero

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "build" / "html"
PARTS = (
    "exact",
    "load",
    "redraw",
    "weight",
    "python",
    "memory",
    "build",
    "ranks",
    "collectives",
    "data-parallel",
    "zero",
    "deepspeed",
    "random-models",
)
BARE = {
    "ranks": measure_ranks,
    "collectives": measure_collectives,
    "data-parallel": measure_data_parallel,
    "zero": measure_zero,
    "deepspeed": measure_deepspeed,
    "random-models": measure_random_models,
}  # need neither a browser nor the book
RACES = ("data-parallel", "zero")

sys.path.insert(0, str(ROOT / "tests" / "browser"))  # the tests' helpers and their configurations


def load_module(name: str, path: Path):
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"what to measure, of {', '.join(PARTS)}; all of them by default",
    )
    parser.add_argument(
        "--record",
        metavar="FOLDER",
        type=Path,
        help=f"of {', '.join(RACES)}: a recording for the pages, into measured",
    )
    arguments = parser.parse_args()
    chosen = arguments.parts or PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if arguments.record and not set(chosen) <= set(RACES):
        parser.error(f"--record is for {', '.join(RACES)}; chosen: {', '.join(chosen)}")
    if set(chosen) <= set(BARE):
        described, results = (
            machine("", ROOT),
            [result for part in chosen for result in BARE[part]()],
        )
        described["load_average_at_the_end"] = machine("", ROOT)["load_average"]
        write(ROOT / "build" / f"bench-{'-'.join(chosen)}.json", results, described)
        if arguments.record:
            recording(
                results, described, f"python -m bench {' '.join(chosen)} --record measured"
            ).write(arguments.record)
        return print(table(results, described))
    settings = load_module("browser_settings", ROOT / "tests" / "conftest.py")
    chromium = settings.find_browser()
    if not chromium:
        sys.exit(f"bench: {settings.HOW_TO_GET_ONE}")
    if not (BOOK / "index.html").exists():
        sys.exit("bench: the book is not built: run make book")

    from visit import page_paths

    first = pages_of_the_book(ROOT)[0]
    chapter = BOOK / f"{first}.html"
    results = []
    with (
        sync_playwright() as playwright,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(BOOK))) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=settings.FLAGS)
        reader = Reader(browser)
        described = machine(browser.version, ROOT)
        print(
            f"bench:  load average {described['load_average']}; on a busy machine times say little",
            file=sys.stderr,
            flush=True,
        )
        for part in chosen:
            print(f"bench:  {part}", file=sys.stderr, flush=True)
            if part == "exact":
                homes = {"http": f"http://127.0.0.1:{server.server_port}", "file": BOOK.as_uri()}
                results += measure_exactness(reader, homes, BOOK)
            elif part == "load":
                sample = build_sample(ROOT, ROOT / "build" / "bench-book")
                pages = {
                    "40 display and 80 inline formulas": (sample["with-formulas"], True),
                    "the same without formulas": (sample["without-formulas"], False),
                    "the same with the explorer last": (sample["explorer-last"], False),
                    "front page": (BOOK / "index.html", False),
                    "chapter 1": (chapter, False),
                    "where the memory goes": (
                        BOOK / "chapters" / "where-the-memory-goes.html",
                        False,
                    ),
                }
                results += measure_loads(reader, pages)
            elif part == "redraw":
                homes = {
                    name: home_of(name, BOOK)
                    for name in (
                        "does-it-fit",
                        "fits-and-how-long",
                        "where-the-memory-goes",
                        "roofline",
                        "collective-cost",
                    )
                }
                results += measure_redraws(
                    reader, {name: path for name, path in homes.items() if path}
                )
            elif part == "weight":
                our_files = {
                    path.name for path in (ROOT / "src" / "bookkit" / "static").iterdir()
                } | {"palette.css"}
                results += measure_weight(browser, BOOK, page_paths(BOOK), our_files)
            elif part == "python":
                results += measure_python()
            elif part == "memory":
                results += measure_memory(ROOT)
            elif part in BARE:
                results += BARE[part]()
            elif part == "build":
                results += measure_building(ROOT, ROOT / "build" / "bench-copy")
        browser.close()
        server.shutdown()
    described["load_average_at_the_end"] = machine("", ROOT)["load_average"]
    write(ROOT / "build" / "bench.json", results, described)
    print(table(results, described))


if __name__ == "__main__":
    main()
