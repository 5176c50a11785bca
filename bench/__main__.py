"""`python -m bench [PART ...]`: measure, print a table, write build/bench.json; what topics race
into a recording too."""

import argparse
import sys
from functools import partial
from pathlib import Path

from bench.browsing import PAGES, CannotBrowse, measure_pages
from bench.building import measure_building
from bench.exposed import CASES, measure_exposed
from bench.formulas import measure_python
from bench.labs import measure_labs
from bench.memory import measure_memory
from bench.random_models import measure_random_models
from bench.ranks import measure_ranks
from bench.report import machine, recording, table, write
from bench.tiles import measure_tiles
from bench.virtual import NODE, SMALL, Race, measure_virtual
from coursekit import topics
from coursekit.recordings.races import Bench
from coursekit.recordings.recordings import InvalidRecording, read_recording

ROOT = Path(__file__).resolve().parents[1]
ENGINES = (
    Bench("python", measure_python),
    Bench("memory", partial(measure_memory, ROOT)),
    Bench("labs", partial(measure_labs, ROOT / "labs")),
    Bench("build", partial(measure_building, ROOT, ROOT / "build" / "bench-copy")),
    Bench("ranks", measure_ranks),
    Bench("random-models", measure_random_models),
    Bench("tiles", measure_tiles),
    Bench("exposed", measure_exposed, dict(cases=CASES[1:3], turns=1)),
    Bench("virtual", measure_virtual, dict(races=[Race("ZeRO 3", SMALL, NODE)], timed=())),
)


def races() -> dict[str, Bench]:
    """The races of all topics, by name."""
    found = [bench for module in topics.modules("runs") for bench in getattr(module, "BENCHES", ())]
    return {bench.name: bench for bench in found}


def main(arguments=None, folder: Path = ROOT / "build") -> int:
    """Writes into the folder."""
    raced = races()
    benches = {bench.name: bench for bench in ENGINES} | raced
    parts = [*PAGES, *benches]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"what to measure, of {', '.join(parts)}; all of them by default",
    )
    parser.add_argument(
        "--record",
        metavar="FOLDER",
        type=Path,
        help=f"of {', '.join(raced)}: a recording for the pages, into measured",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"of {', '.join(raced)}, exposed: little of everything"
    )
    parser.add_argument(
        "--pages",
        metavar="PAGE",
        nargs="+",
        help="of blocking: these pages alone, named as chapters/zero; all of the book by default",
    )
    given = parser.parse_args(arguments)
    chosen = given.parts or parts
    if unknown := set(chosen) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    small = [name for name, bench in benches.items() if bench.quick]
    options = ("record", given.record, raced), ("quick", given.quick, small)
    for option, wanted, fit in (*options, ("pages", given.pages, ["blocking"])):
        if wanted and not set(chosen) <= set(fit):
            parser.error(f"--{option} is for {', '.join(fit)}; chosen: {', '.join(chosen)}")
    described, results = machine(ROOT), []
    print(
        f"bench:  load average {described['load_average']}; on a busy machine times say little",
        file=sys.stderr,
        flush=True,
    )
    if pages := [part for part in PAGES if part in chosen]:
        try:
            results, described["chromium"] = measure_pages(pages, ROOT, given.pages)
        except CannotBrowse as error:
            sys.exit(f"bench: {error}")
    for name in (part for part in chosen if part in benches):
        print(f"bench:  {name}", file=sys.stderr, flush=True)
        results += benches[name].measure(**benches[name].quick if given.quick else {})
    described["load_average_at_the_end"] = machine(ROOT)["load_average"]
    name = "bench" if chosen == parts else f"bench-{'-'.join(chosen)}"
    write(folder / f"{name}.json", results, described)
    print(table(results, described))
    if given.record:
        words = ["python -m bench", *chosen, *["--quick"] * given.quick, "--record measured"]
        try:
            found = recording(results, described, " ".join(words))
            path = Path(given.record) / found.file_name
            (found.after(read_recording(path)) if path.exists() else found).write(given.record)
        except InvalidRecording as error:
            print(f"bench:  nothing was recorded: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
