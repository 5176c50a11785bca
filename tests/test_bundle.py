"""The workshop's zip, with a wheelhouse of stand-ins: it installs and starts with no network."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import bundle
import pytest
from pages import ROOT

pytestmark = pytest.mark.slow
APART = (
    shutil.which("unshare")
    and not subprocess.run(
        ["unshare", "--map-root-user", "--net", "true"], capture_output=True
    ).returncode
)


def stand_in(name: str, folder: Path, *needs: str) -> None:
    """A wheel of a package that has one module, which says its name."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"print('this is {name}')\n")
        said = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0"]
        said += [f"Requires-Dist: {needed}" for needed in needs]
        wheel.writestr(f"{info}/METADATA", "\n".join(said) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.nightly  # by day: what a bundle is made of
@pytest.mark.skipif(not APART, reason="no network namespaces on this machine: unshare --net")
def test_the_zip_installs_and_starts_without_a_network(tmp_path, monkeypatch):
    """Must catch: a package that pip looks for on an index, a start.sh that is not executable after
    unzipping, a learner's notebook or the instructor's that is not there, trials in the open."""

    def wheels_for(platform, target, python, arguments):
        for name in ("shardlab", "jupyterlab"):
            stand_in(name, target)

    html = tmp_path / "html"
    (html / "downloads").mkdir(parents=True)
    (html / "index.html").write_text("the book")
    (html / "downloads" / "04-collectives.ipynb").write_text("{}")
    monkeypatch.setattr(bundle, "wheels_for", wheels_for)
    monkeypatch.setattr(bundle, "HTML", html)
    target = bundle.bundle("windows", tmp_path, bundle.HERE, [])
    unpacked = tmp_path / "unpacked"
    subprocess.run(["unzip", "-q", str(target), "-d", str(unpacked)], check=True)
    top = unpacked / bundle.NAME
    assert (top / "start.bat").read_bytes().endswith(b"wsl ./start.sh %*\r\n")
    assert (top / "labs" / "AGENTS.md").is_file() and not list(top.rglob("trials*.py"))
    stored = {path.name for path in (ROOT / "labs").glob("*.ipynb")}
    assert {path.name for path in (top / "instructor").iterdir()} == stored
    asked = ["unshare", "--map-root-user", "--net", "./start.sh", "python", "-m", "shardlab"]
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    settings |= {"PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull}
    said = subprocess.run(asked, cwd=top, env=settings, capture_output=True, text=True)
    assert said.stdout.endswith("this is shardlab\n"), said.stdout + said.stderr


def test_what_would_not_install_is_refused(tmp_path, monkeypatch):
    """Must catch: gigabytes of CUDA's libraries on each laptop; a source that wants a compiler."""
    for name, said in (("nvidia_cublas-1.whl", "CUDA"), ("arch-1.tar.gz", "compiler")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("")
        monkeypatch.setattr(bundle.subprocess, "run", lambda _: subprocess.CompletedProcess(_, 0))
        monkeypatch.setattr(bundle, "ROOT", tmp_path)
        (tmp_path / "build" / "wheel").mkdir(parents=True, exist_ok=True)
        (tmp_path / "build" / "wheel" / "shardlab-1-py3-none-any.whl").write_text("")
        with pytest.raises(bundle.CannotBundle, match=said):
            bundle.wheels_for("linux", folder, bundle.HERE, [])


def test_another_platform_is_asked_what_it_needs(tmp_path, monkeypatch):
    """Must catch: CUDA's libraries for macOS, which pip on Linux asks for; macOS's own packages
    left out; a package behind an extra, or one that has none for that Python; a pin of here."""
    index = {
        "jupyterlab": ["ipykernel>=6", "fqdn; extra == 'format'"],
        "ipykernel": ["appnope>=0.1; platform_system == 'Darwin'", "Events[format]"],
        "events": ["jupyterlab", "webcolors; extra == 'format'", "old; python_version < '3.12'"],
        "torch": ["cuda-bindings; platform_system == 'Linux'"],
    }
    asked = []

    def download(platform, target, wanted, options):
        asked.extend(wanted)
        assert "--python-version=3.12" in options and "--platform=macosx_14_0_arm64" in options
        for each in wanted:
            name = each.partition("=")[0].partition(">")[0]
            stand_in(name, target, *index.get(name, ()))

    wheel = tmp_path / "build" / "wheel"
    stand_in("shardlab", wheel, "torch>=2.8")
    pins = "# tested\nappnope==1.0.0 ; sys_platform == 'darwin'\ntorch==2.13.0\n"
    pins += "ipykernel==7.0 ; python_version >= '3.12'\nipykernel==6.0 ; python_version < '3.12'\n"
    (tmp_path / "constraints.txt").write_text(pins)
    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    monkeypatch.setattr(bundle, "download", download)
    bundle.wheels_for("macos", tmp_path / "wheels", "3.12", [])
    assert sorted(asked) == [
        "appnope==1.0.0", "events", "ipykernel==7.0", "jupyterlab", "torch==2.13.0", "webcolors"
    ]  # fmt: skip
