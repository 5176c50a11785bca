"""The sizes that `make check` prints, and the numbers that they may not exceed."""

import budgets
import pytest
from pages import ROOT


@pytest.fixture
def root(tmp_path):
    """A repository with something in each part, every number just large enough."""
    for path, lines in {
        "src/shardlab/zero/core.py": 200,
        "src/shardlab/zero/stage1.py": 300,
        "src/ranklab/ranks/world.py": 40,
        "src/coursekit/formulas/registry.py": 50,
        "src/coursekit/topics/zero/__init__.py": 0,
        "src/coursekit/topics/zero/runs.py": 30,
        "src/bookkit/look.py": 6,
        "tests/test_look.py": 7,
        "tools/budgets.csv": 0,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(lines * "x = 1\n")
    numbers = "shardlab 500,ranklab 40,coursekit 50,bookkit 6,topics 30,topics/zero 30,tests 7"
    write(tmp_path, *f"{numbers},cores 2000".split(","))
    return tmp_path


def write(root, *numbers):
    rows = [f"{number.replace(' ', ',')},as it was" for number in numbers]
    (root / "tools" / "budgets.csv").write_text("\n".join(["name,most,reason", *rows, ""]))


def test_within_the_numbers(root, capsys):
    """Must catch: topics counted as coursekit too; a file that is no core held to 200 lines."""
    assert budgets.main(root) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "coursekit 50 50 50" in printed and "shardlab 500 500 500" in printed


@pytest.mark.parametrize("part", ["shardlab/zero/stage1", "ranklab/a", "coursekit/topics/zero/a"])
def test_a_line_more_fails(root, capsys, part):
    """Must catch: a package that grows over its number while `make check` stays green."""
    (root / "src" / f"{part}.py").open("a").write("y = 2\n")
    assert budgets.main(root) >= 1
    assert "cut, or raise the number in tools/budgets.csv and say why." in capsys.readouterr().out


def test_a_core_is_read_in_one_sitting(root, capsys):
    """Must catch: a core over 200 lines, even if comments are what is over."""
    (root / "src/shardlab/zero/core.py").open("a").write("# more\n")
    assert budgets.main(root) == 1
    assert "core.py, a core, has 201 lines" in capsys.readouterr().out


def test_each_part_has_a_number(root, capsys):
    """Must catch: a new topic that nobody bounds; the number of a topic that has gone."""
    write(root, "shardlab 500", "ranklab 40", "nobody 7")
    assert budgets.main(root) == 7
    assert "nobody, which is not there" in capsys.readouterr().out


def test_each_number_has_a_reason():
    """Must catch: a number that somebody raised without a word."""
    rows = (ROOT / "tools" / "budgets.csv").read_text("utf-8").splitlines()
    assert rows[0] == "name,most,reason"
    assert [row for row in rows[1:] if not row.split(",", 2)[2].strip()] == []
