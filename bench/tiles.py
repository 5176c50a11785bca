"""The runner of tiles beside Triton's own interpreter: CPU time for the same launch, in turns. The
interpreter is chosen by a variable of the environment when Triton is imported, so a process of its
own measures."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from coursekit.recordings.races import Result

SHIPPED = Path(__file__).resolve().parents[1] / "tests" / "kernels"  # launches of all kernels
LAUNCHES = {
    "add": dict(rows=100, columns=1001, tile=1024),
    "softmax": dict(rows=64, columns=781),
    "softmax backward": dict(rows=64, columns=781),
    "rms norm": dict(rows=64, columns=768),
    "rms norm backward": dict(rows=64, columns=768),
    "cross-entropy": dict(rows=4, columns=50_257, tile=4096),
    "cross-entropy backward": dict(rows=4, columns=50_257, tile=1024),
    "attention, causal": dict(sizes=(1, 2, 2, 256, 64), tile=(64, 64)),
    "attention backward, causal": dict(sizes=(1, 2, 2, 128, 64), tile=(64, 64)),
}
MOST = 5  # percent of the interpreter's time: 20 times faster


def measure_tiles() -> list[Result]:
    if not find_spec("triton"):
        print("bench:  tiles wants triton (pip install triton, 1 GB)", file=sys.stderr)
        return []
    given = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.tiles"], env=given, stdout=subprocess.PIPE, check=True
    )
    return [
        Result("tiles", name, round(100 * share, 2), "%", MOST, f"{1 / share:.1f} times faster")
        for name, share in json.loads(done.stdout).items()
    ]


def shares(turns: int = 11) -> dict[str, float]:
    """Time of tiles over that of the interpreter, the median of turns, for each launch."""
    import torch

    from ranklab.measure.timing import cpu_seconds, median_ratio, seconds_in_turns
    from shardlab.kernels.launch import of_triton
    from shardlab.kernels.tiles import run

    sys.path.insert(0, str(SHIPPED))
    from shipped import launch_of

    torch.set_num_threads(1)
    found = {}
    for name, sizes in LAUNCHES.items():
        kernel, grid, arguments, constants = launch_of(name, **sizes)
        compiled, named = of_triton(kernel)
        names = {key: named(value) for key, value in constants.items()}
        works = {
            "tiles": partial(run, kernel, grid, *arguments, **constants),
            "interpreter": partial(compiled[grid], *arguments, **names),
        }
        times = seconds_in_turns(works, cpu_seconds, turns)
        found[f"{name}: tiles, of the interpreter's CPU time"] = median_ratio(times, *works)
    return found


if __name__ == "__main__":
    print(json.dumps(shares()))
