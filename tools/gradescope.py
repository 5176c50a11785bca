"""A zip that Gradescope takes as an autograder: the wheel, and two scripts that call `grade`.

python tools/gradescope.py zero build/zero-gradescope.zip [arguments for pip]

Learners upload their file, zero.py. The container gets PyTorch once, when it is built: README.md,
"On a laptop", has the arguments for pip that give its smaller CPU build.
"""

import shlex
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SETUP = """\
#!/usr/bin/env bash
set -e
pip install {arguments} /autograder/source/{wheel}
"""
RUN = """\
#!/usr/bin/env bash
cd /autograder/submission
python3 -m shardlab grade {topic} {topic}.py --gradescope /autograder/results/results.json || true
if [ ! -f /autograder/results/results.json ]; then
    said="the file was not graded: it must be named {topic}.py and keep the rules of the assignment"
    echo "{{\\"score\\": 0, \\"output\\": \\"$said\\"}}" > /autograder/results/results.json
fi
"""


def write_zip(topic: str, target: Path, wheel: Path, arguments: list[str]) -> Path:
    """Write the autograder of a topic; return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(wheel, wheel.name)
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16  # both are run
            filled = text.format(topic=topic, wheel=wheel.name, arguments=shlex.join(arguments))
            packed.writestr(entry, filled)
    return target


def main(topic: str, target: str, *arguments: str) -> None:
    if not (ROOT / "assignments" / topic).is_dir():
        sys.exit(f"there is no assignment {topic!r} in assignments/")
    wheels = sorted((ROOT / "build" / "wheel").glob("shardlab-*.whl"))
    if not wheels:
        sys.exit("there is no wheel in build/wheel: make book makes one")
    print(write_zip(topic, Path(target), wheels[-1], list(arguments)))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("python tools/gradescope.py TOPIC FILE.zip [arguments for pip]")
    main(*sys.argv[1:])
