"""A zip that Gradescope takes as an autograder: the wheel, and two scripts that call `grade`.

python tools/gradescope.py zero build/zero-gradescope.zip

Learners upload their file, zero.py. The container needs PyTorch once, when it is built.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SETUP = """\
#!/usr/bin/env bash
set -e
pip install --extra-index-url https://download.pytorch.org/whl/cpu /autograder/source/{wheel}
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


def write_zip(topic: str, target: Path, wheel: Path) -> Path:
    """Write the autograder of a topic; return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(wheel, wheel.name)
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16  # both are run
            packed.writestr(entry, text.format(topic=topic, wheel=wheel.name))
    return target


def main(topic: str, target: str) -> None:
    if not (ROOT / "assignments" / topic).is_dir():
        sys.exit(f"there is no assignment {topic!r} in assignments/")
    wheels = sorted((ROOT / "build" / "wheel").glob("shardlab-*.whl"))
    if not wheels:
        sys.exit("there is no wheel in build/wheel: make book makes one")
    print(write_zip(topic, Path(target), wheels[-1]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python tools/gradescope.py TOPIC FILE.zip")
    main(*sys.argv[1:])
