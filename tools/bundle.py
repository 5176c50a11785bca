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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "build" / "html"
NAME = "shardlab-workshop"
FRONT = "jupyterlab"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
# What pip is told of a platform on which it does not run.
PLATFORMS = {
    "linux": ["manylinux_2_28_x86_64"],
    "macos": ["macosx_14_0_arm64"],
    "windows": ["manylinux_2_28_x86_64"],  # WSL is Linux
}
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
README = """\
Split, Shard, Recompute: a workshop that needs no network

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
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", target, "--constraint", ROOT / "constraints.txt"]
    if sys.platform != "linux" or platform == "macos" or python != HERE:
        names = [f"--platform={name}" for name in PLATFORMS[platform]]
        command += ["--only-binary=:all:", f"--python-version={python}", *names]
    done = subprocess.run([*map(str, command), str(found[-1]), FRONT, *arguments])
    if done.returncode:
        raise CannotBundle(f"pip could not download the wheels for {platform}: see above.")
    if list(target.glob("nvidia_*")):
        raise CannotBundle(
            "pip chose PyTorch's CUDA build, gigabytes for each laptop: give the index of the CPU"
            ' build, make bundle PIP_ARGS="--extra-index-url ..." as README.md says.'
        )
    sources = [path.name for path in target.iterdir() if path.suffix != ".whl"]
    if sources:
        raise CannotBundle(f"no wheels, and a room has no compiler: {', '.join(sources)}.")


def bundle(platform: str, folder: Path, python: str, arguments: list[str]) -> Path:
    """Write the zip of a platform; return its path."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        top = Path(scratch) / NAME
        (top / "labs").mkdir(parents=True)
        wheels_for(platform, top / "wheels", python, arguments)
        shutil.copytree(HTML, top / "book")
        for path in sorted((HTML / "downloads").glob("*.ipynb")):
            shutil.copy(path, top / "labs")
        write = [sys.executable, "-m", "bookkit.facilitator", ROOT / "labs", top / "instructor"]
        subprocess.run(list(map(str, write)), check=True)
        left_out = shutil.ignore_patterns("__pycache__", "trials*.py", "conftest.py")
        shutil.copytree(ROOT / "assignments", top / "assignments", ignore=left_out)
        shutil.copy(ROOT / "assignments" / "AGENTS.md", top / "labs")
        major, _, minor = python.partition(".")
        for name, text in (("start.sh", START), ("README.txt", README)):
            text = text.replace("@MAJOR@", major).replace("@MINOR@", minor)
            (top / name).write_text(text.replace("@FRONT@", FRONT), "utf-8")
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
        steps = ["./start.sh doctor"]
        for path in sorted((top / "instructor").glob("*.ipynb")):
            if not labs or path.stem[:2] in labs:
                run = "jupyter nbconvert --to notebook --execute --stdout"
                steps.append(f"echo {path.stem}; ./start.sh {run} instructor/{path.name} >out")
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
