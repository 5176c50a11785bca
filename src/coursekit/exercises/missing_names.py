"""A cell that needs a name of a cell that did not run: one sentence instead of a traceback."""

import sys


class ShownAlone(Exception):
    """IPython shows the sentence alone: the traceback is of no use to a reader of a lab."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


SET_UP = "predictions"  # a name that the set-up cell of every lab makes


def explain_missing_names() -> None:
    """Explain missing names: from now on this notebook says of a NameError in a cell what to run
    first. Whoever has told IPython to handle exceptions in another way keeps that."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((NameError,), _explain)


def _explain(shell, kind, error, trace, tb_offset=None):
    frame = trace
    while frame.tb_next is not None:
        frame = frame.tb_next
    in_a_cell = frame.tb_frame.f_globals is shell.user_ns
    if in_a_cell and error.name and kind is NameError:
        first = "" if SET_UP in shell.user_ns else "the first cells of the lab, and then "
        shown = [
            f"NameError: {error.name} is not there yet: run {first}the cells of this section from"
            " its heading down, or mend the name if you have written it."
        ]
    else:
        shown = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
    shell._showtraceback(kind, error, shown)
