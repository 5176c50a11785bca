"""Runs all labs on 1, 2 and 4 pretended GPUs, as `make nightly` does:

python tests/pretended_gpu/run_labs.py [NAME ...]
"""

import subprocess
import sys
import time
from pathlib import Path

from pretended import environment

ROOT = Path(__file__).resolve().parents[2]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
RUN_LAB = Path(__file__).with_name("run_lab.py")
COUNTS = (1, 2, 4)
LIMIT_SECONDS = 600
SHOWN_LINES = 40


def last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN_LINES:])


def main(names: list[str]) -> int:
    failed = 0
    for lab in LABS:
        if names and not any(name in lab.stem for name in names):
            continue
        for gpus in COUNTS:
            begin = time.perf_counter()
            done = subprocess.run(
                [sys.executable, str(RUN_LAB), str(lab)],
                env=environment(gpus),
                timeout=LIMIT_SECONDS,
                capture_output=True,
                text=True,
            )
            said = "failed" if done.returncode else "ran"
            print(f"labs:   {lab.stem} {said} on {gpus} GPUs, {time.perf_counter() - begin:.0f} s")
            if done.returncode:
                failed += 1
                print(last_lines(f"{done.stdout}\n{done.stderr}"), flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
