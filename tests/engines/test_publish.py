"""Publishing: who may write what, and that the learners' branch replaces nothing else."""

import os
import re
import subprocess

import pytest
import yaml
from pages import ROOT
from programs import ran
from told import from_told

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]


def steps(job):
    return [
        (step.get("uses", ""), step.get("run", ""), step.get("with", {})) for step in job["steps"]
    ]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit(workflow):
    """Must catch: ``actions/checkout@v7``, a tag that its owner can move."""
    used = re.findall(r"uses: (\S+)(.*)", workflow.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), f"{action}: which release?"


def test_code_of_others_runs_where_nothing_can_be_written():
    """Must catch: ``contents: write`` for the job that installs packages; a token left in
    .git/config; a deployment beside the build."""
    assert JOBS["build"]["permissions"] == {"contents": "read"}
    writers = {name: job for name, job in JOBS.items() if name != "build"}
    assert set(writers) == {"pages", "learners"}
    for name, job in writers.items():
        for _, run, _ in steps(job):
            assert not re.search(r"\bmake\b|\bpip\b|python", run), name
    assert [uses.partition("@")[0] for uses, _, _ in steps(JOBS["pages"])] == [
        "actions/deploy-pages"
    ]
    for job in JOBS.values():
        for uses, run, given in steps(job):
            if uses.startswith("actions/checkout"):
                assert given["persist-credentials"] is False
                assert given["ref"] == "${{ github.event.workflow_run.head_sha }}"
            assert "github.token" not in run and "TOKEN" not in run


def test_only_what_passed_is_published_and_pages_come_first():
    """Must catch: a red main that is published; a fork's branch named main; Colab's notebooks
    newer than the pages."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    assert workflow[True] == {  # YAML reads the word `on` as true
        "workflow_run": {"workflows": ["test"], "types": ["completed"], "branches": ["main"]}
    }
    condition = JOBS["build"]["if"]
    for part in (
        "workflow_run.conclusion == 'success'",
        "workflow_run.event == 'push'",
        "workflow_run.head_repository.full_name == github.repository",
    ):
        assert part in condition
    assert JOBS["pages"]["needs"] == "build" and JOBS["learners"]["needs"] == "pages"
    assert workflow["permissions"] == {}


def git(folder, *arguments):
    environment = {
        **os.environ,
        **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "a reader"),
        **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "reader@example.org"),
    }
    return ran("git", "-C", folder, *arguments, env=environment, check=True).stdout.strip()


class Remote:
    """A repository that GitHub might hold, a checkout of it, and files for learners."""

    def __init__(self, folder):
        self.bare, self.checkout, self.files = folder / "bare", folder / "book", folder / "files"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "trunk", self.bare], check=True)
        subprocess.run(["git", "init", "-q", "-b", "trunk", self.checkout], check=True)
        self.files.mkdir()
        (self.files / "lab.ipynb").write_text("a lab")
        (self.checkout / "page.md").write_text("a page")
        for branch in ("trunk", "main"):
            self.commit_to(branch)

    def commit_to(self, branch):
        git(self.checkout, "checkout", "-q", "-B", branch)
        git(self.checkout, "add", "page.md")
        git(self.checkout, "commit", "-q", "--allow-empty", "-m", f"Made from hand for {branch}")
        git(self.checkout, "push", "-q", self.bare, branch)

    def push(self, branch, commit="abc"):
        (self.checkout / "_address.yml").write_text(f"branch: main\nlearner_branch: {branch}\n")
        command = [ROOT / ".ci" / "push_learners", self.files, self.bare.as_uri(), commit]
        return ran(*command, cwd=self.checkout)

    def heads(self):
        found = git(
            self.bare, "for-each-ref", "--format=%(refname:short) %(objectname)"
        ).splitlines()
        return dict(line.split() for line in found)

    def names(self, branch):
        return git(self.bare, "ls-tree", "-r", "--name-only", branch).split()


@pytest.fixture
def remote(tmp_path):
    return Remote(tmp_path)


def test_the_branch_is_made_and_replaced(remote):
    """Must catch: a history that grows with every wheel; files of the last time that stay; files
    that a .gitignore leaves out."""
    before = remote.heads()
    assert remote.push("learner").returncode == 0 and remote.names("learner") == ["lab.ipynb"]
    (remote.files / "lab.ipynb").rename(remote.files / "other.ipynb")
    (remote.files / ".gitignore").write_text("*.whl\n")
    (remote.files / "a.whl").write_text("a wheel")
    assert remote.push("learner  # a comment", "def").returncode == 0
    assert remote.names("learner") == [".gitignore", "a.whl", "other.ipynb"]
    assert git(remote.bare, "log", "--format=%s", "learner") == "Made from def"
    assert {name: head for name, head in remote.heads().items() if name != "learner"} == before


@from_told("branch, words")
def test_no_other_branch_is_replaced(remote, branch, words):
    """Must catch: the force-push onto main, onto a default branch of another name, onto a branch
    that somebody works on."""
    remote.commit_to("mine")
    before = remote.heads()
    done = remote.push(branch)
    assert done.returncode == 1 and words in done.stderr
    assert done.stderr.startswith("push_learners: ") and done.stderr.count("\n") == 1
    assert remote.heads() == before


def test_nothing_is_pushed_where_no_branch_is_named(remote):
    """Must catch: an empty name taken for one."""
    before = remote.heads()
    assert remote.push('""').returncode == 0 and remote.heads() == before
