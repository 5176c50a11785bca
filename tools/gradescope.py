"""A zip that Gradescope takes as an autograder: the wheel, and two scripts that call `grade`.

python tools/gradescope.py zero build/zero-gradescope.zip [arguments for pip]

Learners upload their file, zero.py. The container gets PyTorch once, when it is built: README.md,
"On a laptop", has the arguments for pip that give its smaller CPU build.

Gradescope runs an autograder as root. `grade` alone goes on as root: the ranks, in which the
learner's file runs, become the user `nobody` first, so the file cannot write results.json, nor end
the grader, nor read what root alone can read. Ranks answer in JSON, which runs no code. The file
still shares its process with the trial that judges it: whoever wants to can make a wrong function
look right. Points are for learners who work by the rules; read the files of those who have all.
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
cd /autograder/source || exit 1 # Python imports what is here: nothing of a learner's
other=() # where this is not root: there is no other user, and nothing that is root's alone
[ "$(id -u)" = 0 ] && other=(--user nobody) && chmod 700 /autograder/results
results=/autograder/results/results.json
mine=/autograder/submission/{topic}.py
python3 -m shardlab grade {topic} "$mine" --gradescope "$results" "${{other[@]}}" || true
if [ ! -f "$results" ]; then
    said="the file was not graded: it must be named {topic}.py and keep the rules of the assignment"
    echo "{{\\"score\\": 0, \\"output\\": \\"$said\\"}}" > "$results"
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
