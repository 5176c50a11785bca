"""A name that a lab's cell does not find, in a real kernel."""

from notebook_kernel import notebook

SETUP = """from coursekit.exercises import Predictions
predictions = Predictions("lab")
def average(): return of_nobody
def inside(): return len(3)"""


def test_a_missing_name_is_one_sentence(tmp_path, monkeypatch):
    """Must catch: a traceback for a cell whose earlier cell was skipped; an error that the cell
    survives, so that a lab that is broken passes; other errors without their traceback; a name that
    is missing within the package told to the reader as one of their own; a reader who has skipped
    the set-up sent to the section alone."""
    monkeypatch.chdir(tmp_path)
    with notebook(SETUP) as kernel:
        missing = kernel.run("print(losses[-1])")
        assert missing.name == "NameError" and not missing.out
        assert missing.error == (
            "NameError: losses is not there yet: run the cells of this section from its heading"
            " down, or mend the name if you have written it."
        )
        assert "of_nobody is not there yet" in kernel.run("average()").error
        assert "----> 1 inside()" in kernel.run("inside()").error.replace("\x1b", "")
        elsewhere = kernel.run("exec('nowhere', {})")
        assert elsewhere.name == "NameError" and "heading" not in elsewhere.error
        assert kernel.run("losses = [2]\nprint(losses[-1])").out == "2\n"
        kernel.run("del predictions")
        assert "run the first cells of the lab, and then the cells of" in kernel.run("lab").error


def test_an_interrupted_import_is_one_sentence(tmp_path):
    """Must catch: a package that an interrupt has left in parts, of which every later cell of the
    set-up shows a long traceback; other interrupts and errors without their traceback."""
    with notebook(SETUP) as kernel:
        plain = kernel.run("raise KeyboardInterrupt")
        assert plain.name == "KeyboardInterrupt" and "----> 1 raise" in plain.error
        assert "----> 1 1 / 0" in kernel.run("1 / 0").error
        kernel.run("import sys; sys.modules['torch.part'] = sys")
        for cell in ("raise KeyboardInterrupt", "raise ImportError('partially')", "nowhere"):
            shown = kernel.run(cell)
            assert shown.error == (
                f"{shown.name}: the import of torch was interrupted, and cannot be repeated:"
                " restart the kernel, and run the lab from its first cell."
            )
