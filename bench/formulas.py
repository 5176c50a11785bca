"""The seconds that a lab waits for: the imports, and the formulas themselves."""

import subprocess
import sys
from statistics import median
from time import perf_counter

from coursekit.recordings.races import Result

IMPORTS = 5
EVALUATIONS = 300


def measure_python() -> list[Result]:
    """Milliseconds of an import in a fresh interpreter (above an empty one), and of one evaluation
    of each explorer."""
    from coursekit.show.explorers import EXPLORERS

    def start(statement):
        begin = perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        return 1000 * (perf_counter() - begin)

    names = ("shardlab", "coursekit.formulas", "coursekit.show.explorers")
    times = {name: [] for name in names}
    for _ in range(IMPORTS):
        empty = start("pass")
        for name in names:
            times[name].append(start(f"import {name}") - empty)
    results = [
        Result("python", f"import {name}", round(median(times[name])), "ms") for name in names
    ]
    for name, spec in EXPLORERS.items():
        values, taken = spec.start(), []
        for _ in range(EVALUATIONS):
            begin = perf_counter()
            spec.compute(values)
            taken.append(1000 * (perf_counter() - begin))
        count = len(spec.inputs) + len(spec.formulas)
        results.append(
            Result("python", f"{name}: {count} quantities, exactly", round(median(taken), 3), "ms")
        )
    return results
