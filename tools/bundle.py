"""One zip for each platform, from which a room installs and works without a network.

python tools/bundle.py build/bundle                       Linux, macOS, and Windows with WSL
python tools/bundle.py build/bundle --platform linux --try   one, unpacked, installed and run apart

In a zip: the built book, the learners' notebooks, the instructor's, the assignments, every package,
PyTorch's CPU build among them, and start.sh. `make bundle` builds the book first. Arguments after
`--` go to pip, such as the index with PyTorch's CPU build, for Linux: see README.md.

`--try` unpacks the zip, installs from it and runs every lab in a network namespace that has no way
out, so whatever the zip lacks is missed here and not in the room.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from platform import machine

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "build" / "html"
NAME = "shardlab-workshop"
FRONT = "jupyterlab"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
# What pip is told of a platform on which it does not run, and what markers see there. Pip finds the
# older names of macOS by itself, and not those of Linux.
LINUX = [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64"]
PLATFORMS = {"linux": LINUX, "macos": ["macosx_14_0_arm64"], "windows": LINUX}  # WSL is Linux
ON_LINUX = dict(sys_platform="linux", platform_system="Linux", platform_machine="x86_64")
ON_MACOS = dict(sys_platform="darwin", platform_system="Darwin", platform_machine="arm64")
MARKERS = {"linux": ON_LINUX, "macos": ON_MACOS, "windows": ON_LINUX}
EVERYWHERE = dict(
    os_name="posix", implementation_name="cpython", platform_python_implementation="CPython"
)
START = """\
#!/usr/bin/env bash
# Installs from wheels/ the first time, without a network, then opens JupyterLab on the labs.
#   ./start.sh            the labs            ./start.sh doctor     is this machine ready?
#   ./start.sh python ... any command of the environment
set -e
cd "$(dirname "$0")"
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (@MAJOR@, @MINOR@))' || {
    echo "This bundle is for Python @MAJOR@.@MINOR@: PYTHON=python@MAJOR@.@MINOR@ ./start.sh"
    exit 1
}
if [ ! -f venv/.ready ]; then
    echo "installing from wheels/ into venv/: a minute or two, once"
    "$python" -m venv --clear venv
    venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index \\
        --find-links wheels shardlab @FRONT@
    touch venv/.ready
fi
export PATH="$PWD/venv/bin:$PATH"
case "${1:-lab}" in
    lab) exec jupyter lab --notebook-dir labs ;;
    doctor) exec python -m shardlab doctor labs ;;
    *) exec "$@" ;;
esac
"""
WINDOWS = """\
@echo off
rem In WSL, where ranks fork. wsl --install brings it, with a network.
wsl ./start.sh %*
"""
FOR = {
    "linux": "Linux on x86-64",
    "macos": "macOS 14 or newer on Apple silicon",
    "windows": "Windows with WSL, on x86-64",
}
README = """\
Split, Shard, Recompute: a workshop that needs no network

For @FOR@.

book/index.html      the book: open it in a browser
start.sh             installs what is in wheels/ (Python @MAJOR@.@MINOR@), then opens the labs
start.sh doctor      says whether this machine can run them, and what to do if not
labs/                the learners' notebooks
instructor/          the same with solutions, outputs and notes for whoever teaches
assignments/         techniques to build whole; AGENTS.md is for an assistant that helps
"""


class CannotBundle(Exception):
    """Something without which the zip would not install."""


def wheels_for(platform: str, target: Path, python: str, arguments: list[str]) -> None:
    """Download the wheels of shardlab and of JupyterLab for a platform."""
    found = sorted((ROOT / "build" / "wheel").glob("shardlab-*.whl"))
    if not found:
        raise CannotBundle("build/wheel has no wheel of shardlab: make book makes it.")
    if sys.platform == "linux" and machine() == "x86_64" and python == HERE and platform != "macos":
        pins = ["--constraint", ROOT / "constraints.txt"]
        download(platform, target, [found[-1], FRONT], [*pins, *arguments])
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(found[-1], target)
        from_afar(platform, target, python, arguments)
    if list(target.glob("nvidia_*")):
        raise CannotBundle(
            "pip chose PyTorch's CUDA build, gigabytes for each laptop: give the index of the CPU"
            ' build, make bundle PIP_ARGS="--extra-index-url ..." as README.md says.'
        )
    sources = [path.name for path in target.iterdir() if path.suffix != ".whl"]
    if sources:
        raise CannotBundle(f"no wheels, and a room has no compiler: {', '.join(sources)}.")


def download(platform: str, target: Path, wanted: list, arguments: list) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*map(str, [*command, "--dest", target, *wanted, *arguments])])
    if done.returncode:
        raise CannotBundle(f"pip could not download the wheels for {platform}: see above.")


def from_afar(platform: str, target: Path, python: str, arguments: list[str]) -> None:
    """Download for a platform or a Python on which pip does not run. Pip would ask this machine
    which packages are wanted, such as CUDA's on macOS; so each wheel says what it needs, and its
    markers are asked about the other machine."""
    there = EVERYWHERE | MARKERS[platform] | {"python_version": python, "extra": ""}
    there["python_full_version"] = f"{python}.0"

    def holds(needed: Requirement, extras=()) -> bool:
        marker = needed.marker
        return marker is None or any(marker.evaluate(there | {"extra": e}) for e in ("", *extras))

    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): pin.specifier for pin in pins if holds(pin)}
    names = [f"--platform={name}" for name in PLATFORMS[platform]]
    options = ["--no-deps", "--only-binary=:all:", f"--python-version={python}", *names, *arguments]
    known, new = set(), [Requirement("shardlab"), Requirement(FRONT)]
    while new:
        wanted = {canonicalize_name(each.name): each.specifier for each in new}
        wanted = [f"{name}{pinned.get(name, given)}" for name, given in wanted.items()]
        wanted = [each for each in wanted if each != "shardlab"]  # lies there
        download(platform, target, wanted, options)
        known |= {(canonicalize_name(each.name), frozenset(each.extras)) for each in new}
        asked = [
            needed
            for each in new
            for needed in needs(target, each.name)
            if holds(needed, each.extras)
        ]
        new = [
            each
            for each in asked
            if (canonicalize_name(each.name), frozenset(each.extras)) not in known
        ]


def needs(target: Path, name: str) -> list[Requirement]:
    """Requirements of a package in a folder of wheels, with their markers."""
    for path in target.glob("*.whl"):
        if canonicalize_name(path.name.partition("-")[0]) == canonicalize_name(name):
            with zipfile.ZipFile(path) as wheel:
                inside = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                said = HeaderParser().parsestr(wheel.read(inside).decode("utf-8"))
            return [Requirement(text) for text in said.get_all("Requires-Dist") or []]
    raise CannotBundle(f"pip downloaded no wheel of {name}.")


def bundle(platform: str, folder: Path, python: str, arguments: list[str]) -> Path:
    """Write the zip of a platform; return its path."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        top = Path(scratch) / NAME
        (top / "labs").mkdir(parents=True)
        wheels_for(platform, top / "wheels", python, arguments)
        shutil.copytree(HTML, top / "book")
        for path in sorted((HTML / "downloads").glob("*.ipynb")):
            shutil.copy(path, top / "labs")
        program = ROOT / "workshop" / "facilitator.py"
        write = [sys.executable, program, ROOT / "labs", top / "instructor"]
        subprocess.run(list(map(str, write)), check=True)
        left_out = shutil.ignore_patterns("__pycache__", "trials*.py", "conftest.py")
        shutil.copytree(ROOT / "assignments", top / "assignments", ignore=left_out)
        shutil.copy(ROOT / "assignments" / "AGENTS.md", top / "labs")
        major, _, minor = python.partition(".")
        for name, text in (("start.sh", START), ("README.txt", README)):
            text = text.replace("@MAJOR@", major).replace("@MINOR@", minor)
            text = text.replace("@FRONT@", FRONT).replace("@FOR@", FOR[platform])
            (top / name).write_text(text, "utf-8")
        if platform == "windows":
            (top / "start.bat").write_text(WINDOWS, "utf-8", newline="\r\n")
        (top / "start.sh").chmod(0o755)
        target = folder / f"{NAME}-{platform}-python{python}.zip"
        pack(top, target)
    return target


def pack(top: Path, target: Path) -> None:
    """Zip a folder with its modes; wheels and pictures are compressed already."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for path in sorted(top.rglob("*")):
            if path.is_file():
                kind = zipfile.ZIP_STORED if path.suffix == ".whl" else zipfile.ZIP_DEFLATED
                packed.write(path, path.relative_to(top.parent), kind)


def try_apart(target: Path, labs: list[str]) -> None:
    """Unpack, install and run labs in a network namespace without a way out. Raises CannotBundle
    where a step fails."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["unzip", "-q", str(target), "-d", scratch], check=True)
        top = Path(scratch) / NAME
        inside = (
            "set -e; ip link set lo up; ! timeout 5 bash -c '</dev/tcp/1.1.1.1/53' 2>/dev/null; "
        )
        steps = ["./start.sh doctor", "failed="]
        for path in sorted((top / "instructor").glob("*.ipynb")):
            if not labs or path.stem[:2] in labs:
                run = "jupyter nbconvert --to notebook --execute --stdout"
                steps += [
                    f"SECONDS=0; ./start.sh {run} instructor/{path.name} >out 2>err || "
                    f"{{ failed+=' {path.stem}'; tail -n 20 err; }}",
                    f"echo {path.stem}: $SECONDS s",
                ]
        steps.append('[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }')
        left = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        left |= {"PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull, "HOME": scratch}
        command = ["unshare", "--map-root-user", "--net", "bash", "-c", inside + "; ".join(steps)]
        if subprocess.run(command, cwd=top, env=left).returncode:
            raise CannotBundle(f"{target.name} does not work without a network: see above.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--platform", action="append", choices=PLATFORMS)
    parser.add_argument("--python", default=HERE, help="of the learners' machines")
    parser.add_argument("--try", dest="tried", action="store_true", help="install and run apart")
    parser.add_argument("--lab", action="append", default=[], help="to try, such as 04; else all")
    parser.add_argument("pip", nargs="*", help="after --: arguments for pip")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        for platform in asked.platform or PLATFORMS:
            target = bundle(platform, asked.folder, asked.python, asked.pip)
            print(f"bundle: {target}, {target.stat().st_size / 1e6:.0f} MB", flush=True)
            if asked.tried and platform != "macos":
                try_apart(target, asked.lab)
    except CannotBundle as refused:
        print(f"bundle: {refused}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
