"""The marks that conftest.py gives, by which `make check` leaves out what they name, and the
browser that it finds."""

import shutil
from runpy import run_path
from types import ModuleType, SimpleNamespace

import pytest
from pages import ROOT
from told import from_told, valued


@pytest.fixture(scope="module")
def conftest():
    return SimpleNamespace(**run_path(str(ROOT / "tests" / "conftest.py")))


def test_ranks_do_not_start_without_the_mark():
    """Must catch: the ranks not guarded, so that a test without the mark starts some and `make
    check` waits for them."""
    from ranklab.ranks import ranks

    with (
        pytest.raises(pytest.fail.Exception, match="@pytest.mark.ranks"),
        ranks(2, announce=False) as world,
    ):
        world.run(int)


@from_told("statement, starts", valued)
def test_what_a_module_imports_marks_it(conftest, statement, starts):
    """Must catch: an import of the ranks that is not seen; threads taken for ranks."""
    module = ModuleType("test_some")
    exec(statement, vars(module))
    assert conftest.starts_ranks(module) == starts


class Row:
    """A collected row of a test, as conftest.py sees it."""

    fixturenames, module = (), ModuleType("test_some")
    function = test_ranks_do_not_start_without_the_mark

    def __init__(self, session, number, *marks):
        self.session, self.nodeid, self.marks = session, f"test_some.py::test[{number}]", [*marks]

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark):
        self.marks.append(mark if hasattr(mark, "name") else getattr(pytest.mark, mark).mark)


def test_every_nth_row_runs_by_day(conftest):
    """Must catch: a test without a row by day, as its first waits for the night, or waits already;
    rows of two tests counted together."""
    session, by_day = SimpleNamespace(stash=pytest.Stash()), []
    for number in range(8):
        night = [pytest.mark.nightly.mark] * (number < 2)
        row = Row(session, number, pytest.mark.one_in(3).mark, *night)
        other = Row(session, number, pytest.mark.one_in(3).mark)
        other.nodeid = f"test_other.py::test[{number}]"
        for item in (row, other):
            conftest.pytest_itemcollected(item)
        by_day += [row.nodeid] * (not row.get_closest_marker("nightly"))
    assert by_day == ["test_some.py::test[2]", "test_some.py::test[5]"]


def test_a_test_without_a_docstring_fails(conftest):
    """Must catch: a test that does not say which change of the code makes it fail."""
    row = Row(SimpleNamespace(stash=pytest.Stash()), 0)
    row.function = lambda: None
    conftest.pytest_itemcollected(row)
    with pytest.raises(pytest.fail.Exception, match="no docstring says what it must catch"):
        row.runtest()


def test_without_a_browser(conftest, monkeypatch):
    """Must catch: CI passing although no page was looked at; a newcomer's run failing, or not
    saying what to install; the header that does not say it."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install chromium" in conftest.pytest_report_header(None)
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises((pytest.skip.Exception, pytest.fail.Exception)) as caught:
            conftest.require_browser()
        assert caught.type is outcome and "apt-get install chromium" in str(caught.value)
