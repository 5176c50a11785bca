"""`python -m shardlab grade`: exit codes, rules about the text, code that hangs, dies or floods and
ends in a sentence."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from graded import ROOT, results, skeleton
from told import from_told

from coursekit.__main__ import main
from coursekit.exercises import assignments, grading, grading_command, grading_text
from coursekit.exercises.assignments import CannotGrade, assignment
from coursekit.exercises.grading_text import names_used, rules_broken
from coursekit.exercises.on_a_rank import Learners
from ranklab.ranks import RankRaised, ranks

RING = "sums_around_a_ring"
FORGED = "import sys\nsys.modules['{}'].{} = lambda *a, **k: [1.0, 1.0]\nall_reduce = print"
SKELETONS = sorted(ROOT.glob("assignments/*/README.md"))


def written(body: str) -> str:
    return f"def all_reduce(tensor, group=None):\n    {body}\n"


def test_nothing_to_grade(tmp_path, monkeypatch, capsys):
    """Must catch: a traceback, or exit code 1, where there is no such topic or file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"x = '\xe4'")
    for asked in (
        ["pottery"],
        ["collectives"],
        ["collectives", "missing.py"],
        ["collectives", "."],
        ["collectives", "latin.py"],
    ):
        assert main(["grade", *asked]) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert asked[-1] in said


@from_told("source, sentence")
def test_rules_about_the_text(source, sentence, tmp_path, capsys):
    """Must catch: a file that imports its solution, or that does not compile, and runs."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert main(["grade", "collectives", str(file)]) == 1
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_names_of_the_skeletons_rules():
    """Must catch: a rule that refuses the skeleton itself, or sees no name behind an alias."""
    asked = assignment("collectives")
    assert list(rules_broken(asked, skeleton("collectives"), "collectives.py")) == []
    tree = grading_text.ast.parse("from torch import distributed as d\nd.fsdp.x")
    assert (2, "torch.distributed.fsdp.x") in set(names_used(tree))


def test_every_assignment_has_its_files():
    """Must catch: a skeleton without the names that are graded, or that raises when it is imported;
    a folder without trials; two trials of one name, by which a rank finds them. The five slow
    programs have no faults, and their speed is what is counted."""
    for path in SKELETONS:
        topic, readme = path.parent.name, path.read_text(encoding="utf-8")
        asked = assignment(topic)
        groups = {"where_the_time_goes": ("parity", "bytes")}.get(topic, assignments.GROUPS)
        if topic in ("long_sequences", "mixture_of_experts"):  # no trial of speed
            groups = ("parity", "bytes", "faults")
        assert {trial.group for trial in asked.trials} == set(groups)
        assert len({trial.work.__name__ for trial in asked.trials}) == len(asked.trials)
        mine = Learners.of_source(skeleton(topic), f"{topic}.py")
        for name in asked.reference:
            assert getattr(mine, name) and name in readme, name
    with pytest.raises(CannotGrade, match="collectives"):
        assignment("pottery")


def test_start_copies_what_a_learner_needs(tmp_path, monkeypatch, capsys):
    """Must catch: a written file that is overwritten, a copy that `grade` does not find, a skeleton
    that an installed wheel has elsewhere than a checkout."""
    monkeypatch.chdir(tmp_path)
    assert main(["grade", "collectives", "--start"]) == 0
    own = tmp_path / "assignments" / "collectives"
    assert (own / "collectives.py").read_text(encoding="utf-8") == skeleton("collectives")
    assert "collectives" in (own / "README.md").read_text(encoding="utf-8")
    assert tmp_path / grading_command.place_of_file("collectives") == own / "collectives.py"
    (own / "collectives.py").write_text("x = 1")
    assert main(["grade", "collectives", "--start"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (own / "collectives.py").read_text() == "x = 1"
    monkeypatch.setattr(assignments, "FOLDERS", (tmp_path / "elsewhere", *assignments.FOLDERS))
    assert main(["grade", "collectives", "--start", "beside"]) == 0
    monkeypatch.setattr(assignments, "FOLDERS", (tmp_path / "elsewhere",))
    assert main(["grade", "collectives", "--start"]) == 2
    assert "no skeleton of collectives" in " ".join(capsys.readouterr().err.split())


def test_start_loads_no_torch(tmp_path):
    """Must catch: the trials of all assignments imported for a copy of two files."""
    code = (
        "import sys\nfrom coursekit.__main__ import main\n"
        "assert main(['grade', 'zero', '--start']) == 0 and 'torch' not in sys.modules\n"
        "assert main(['grade', 'pottery', '--start']) == 2 and 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "pottery has no assignment: there are activation_checkpointing, " in done.stderr


@pytest.mark.nightly  # by day the command tries one, and pytest the core
@pytest.mark.slow
def test_pytest_tries_a_learners_file(tmp_path):
    """Must catch: the book's own code tried instead of the learner's file; a traceback of the
    grader, or no sentence; a trial of a part that is not written, for which ranks start; an error
    of imports where the file of the trials is named, as pytest's own line of a failure does."""
    mine = tmp_path / "mine.py"
    mine.write_text(skeleton("collectives"))
    command = [sys.executable, "-m", "pytest", "assignments/collectives/trials.py"]
    command += ["-m", "parity"]
    done = subprocess.run([*command, "--mine", mine], cwd=ROOT, capture_output=True, text=True)
    parity = [one for one in assignment("collectives").trials if one.group == "parity"]
    assert done.returncode == 1 and f"{len(parity)} failed" in done.stdout
    line = grading_text.unwritten(skeleton("collectives"))["all_reduce"]
    assert f"not written yet: line {line} raises NotImplementedError." in done.stdout
    assert "sums_around_a_ring[mine]" in done.stdout and "Traceback" not in done.stdout


def test_what_ranks_say_keeps_its_lines(capsys):
    """Must catch: the places of four ranks that wait for each other in one paragraph; a line too
    long for a terminal."""
    from ranklab.ranks import RanksDeadlocked

    error = RanksDeadlocked("Ranks 0 and 1 wait:\n  rank 0 was in a\n  rank 1 was in b\nAll.", [0])
    trial = assignments.Trial("parity", "all_reduce", lambda mine: None)
    grading_command.show_results([grading.TrialResult(trial, "not yet", grading._words(error))])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[2:]] == [
        "Ranks 0 and 1 wait:",
        "rank 0 was in a",
        "rank 1 was in b",
    ]
    long = RanksDeadlocked("\n".join(["word " * 100] * 4), [0])
    assert len(grading._words(long)) < 700 and grading._words(long).count("[...]") == 3


def test_a_learners_error_is_no_finding():
    """Must catch: an error whose text has the words of a finding, taken for a line not written."""
    raised = "ValueError: it raised NotWritten: a part"
    error = RankRaised(f"Rank 1 raised {raised}\nAll ranks live on.", [1])
    assert grading._words(error) == f"Rank 1 raised {raised}"
    found = RankRaised("Ranks 0 and 2 raised Wrong: a sum: 3\nAll ranks live on.", [0, 2])
    assert grading._words(found) == "a sum: 3 (Ranks 0 and 2)"


@pytest.mark.parametrize("topic", [path.parent.name for path in SKELETONS])
def test_an_untouched_skeleton_starts_no_ranks(topic, monkeypatch, tmp_path, capsys):
    """Must catch: ranks that are started for it; a trial of a part that is not written; exit code
    0; long output."""
    started = Mock(side_effect=AssertionError("ranks were started"))
    monkeypatch.setattr(grading_command, "ranks", started)
    file = tmp_path / "mine.py"
    file.write_text(skeleton(topic))
    assert main(["grade", topic, str(file)]) == 1
    said, trials = capsys.readouterr().out, assignment(topic).trials
    assert said.count("not written yet") == len({trial.part for trial in trials})
    assert "\n0 of " in said and "Traceback" not in said and said.count("\n") < 4 * len(trials)


@pytest.mark.ranks
def test_a_line_that_fails_in_every_trial_is_told_once(worlds):
    """Must catch: PyTorch's text about the address of a group, and the same text for each trial."""
    source = "import torch.distributed as dist\n" + written("dist.isend(tensor, 9, group)")
    ring, again = results(worlds(4), "collectives", source, RING, "bytes_of_a_ring")
    assert "rank 9 of the world is not in this group" in ring.sentence
    assert "get_global_rank" in ring.sentence and "object at" not in ring.sentence
    assert "raised ValueError" in again.sentence
    assert again.sentence.endswith(f"as in all_reduce: {ring.trial.title}.")


@pytest.mark.ranks
def test_the_reference_is_right(worlds, monkeypatch, capsys):
    """Must catch: exit code 1 for the reference. That of a skeleton is 1 above."""
    monkeypatch.setattr(grading_command, "ranks", lambda *_, **__: nullcontext(worlds(4)))
    assert main(["grade", "collectives", "--reference"]) == 0
    assert "17 of 17 right" in capsys.readouterr().out


@pytest.mark.one_in(3)
@pytest.mark.ranks
@from_told("source, sentence")
def test_code_that_misbehaves(source, sentence):
    """On ranks of its own. Must catch: a traceback of the grader, a run without end, output without
    a bound, or a file that is right because it puts its own function where the verdict is."""
    seconds = 2.0 if sentence == "had not ended" else 30.0
    with ranks(4, device="cpu", announce=False) as world:
        found = results(
            world, "collectives", source, RING, "bytes_of_a_ring", trial_seconds=seconds
        )
    assert [result.said for result in found] == ["not yet"] * 2
    assert sentence in found[0].sentence
    assert all(len(result.sentence) < 1_000 and len(result.printed) < 2_000 for result in found)


def test_a_file_clears_no_screen(capsys):
    """Must catch: a learner's output or error that moves the cursor of whoever grades the file."""
    trial = assignments.Trial("parity", "all_reduce", lambda mine: None)
    said = grading.TrialResult(trial, "not yet", "\x1b[2Jno", "a\tb\x1b]52;c;QQ==\x07\r")
    grading_command.show_results([said])
    assert all(one.isprintable() or one == "\n" for one in capsys.readouterr().out)


@pytest.mark.ranks
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root's alone")
def test_root_grades_as_somebody_without_rights(tmp_path):
    """Must catch: a learner's file that runs as root, with root's groups, or in the grader; ranks
    that cannot go on after a fault, because they are somebody else's now."""
    folder = tmp_path / "roots"
    folder.mkdir(mode=0o700)
    body = (
        f"import os; raise ValueError(os.getuid(), os.getgroups(), os.access({str(folder)!r}, 4))"
    )
    user = grading_command.user_ids("nobody")
    asked = assignment("collectives")
    with ranks(4, device="cpu", announce=False) as world:
        grader = grading.Grader(asked, written(body), "mine.py", lambda: world, user=user)
        said = [grader.result(one).sentence for one in asked.trials if one.part == "all_reduce"]
    assert f"ValueError: ({user[0]}, [], False)" in said[0] and len(said) > 2
    assert all("raised ValueError" in one for one in said[1:])


def test_a_report_has_what_was_found_and_no_code(tmp_path):
    """Must catch: a learner's source or output in the report, a speed that costs points, a trial
    that is not right and gets one."""
    kinds = [("parity", "right"), ("bytes", "not yet"), ("speed", "measured")]
    found = [
        grading.TrialResult(
            assignments.Trial(group, "all_reduce", lambda mine: None), said, "", "SECRET"
        )
        for group, said in kinds
    ]
    report = grading_command.report_of("collectives", found, 1.23)
    assert (report["right"], report["count"]) == (1, 2) and report["versions"]["torch"]
    ours, theirs = tmp_path / "report.json", tmp_path / "results.json"
    grading_command.write_reports(report, ours, theirs)
    assert "SECRET" not in ours.read_text() + theirs.read_text()
    tests = json.loads(theirs.read_text())["tests"]
    assert [(one["score"], one["max_score"]) for one in tests] == [(1, 1), (0, 1), (0, 0)]
