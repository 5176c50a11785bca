"""Write constraints.txt: one tested version of every package the book, the labs and the tests
install.

``make lock`` runs this with uv, which resolves for every supported Python at once and writes an
environment marker where the newest version differs between them. It does not move torch: change
its line in constraints.txt by hand, and only together with a run of the labs. What torch brings
along for CUDA is left to torch.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CUDA = re.compile(r"(nvidia-|cuda-|triton\b)")
HEADER = """\
# The tested versions, written by `make lock`. Python 3.11 to 3.14; where the newest version of a
# package needs a newer Python, each Python gets its own. Torch is moved by hand; on a machine
# without a GPU its CPU build satisfies the same line.
"""


def main() -> None:
    constraints = ROOT / "constraints.txt"
    torch = next(
        line for line in constraints.read_text().splitlines() if line.startswith("torch==")
    )
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "torch.txt"
        pinned.write_text(torch + "\n")
        resolved = subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"),
                *("--python-version", "3.11"),
                *("--no-header", "--no-annotate", "--all-extras", "--constraint", pinned),
                *("pyproject.toml", "src/pyproject.toml"),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.splitlines()
    kept = [line for line in resolved if not CUDA.match(line)]
    constraints.write_text(HEADER + "\n".join(kept) + "\n")
    print(f"lock:   {len(kept)} lines in constraints.txt, {torch}")


if __name__ == "__main__":
    main()
