"""For a cell of a lab that goes on with what the reader wrote.

must_be_right(exercise, solution)        # raises NotYet, one sentence, unless the check passes
"""

from collections.abc import Callable

from .checker import Exercise, check, own_name
from .predictions import NotYet


def must_be_right(exercise: Exercise, solution: Callable) -> None:
    """Ranks run what passes its check and nothing else, so a blank that is left, or an answer that
    would hang, is a sentence and not the tracebacks of four ranks."""
    if not check(exercise, solution):
        raise NotYet(
            f"{own_name(solution, exercise.name)} is not right yet: its check says why. Repair it"
            " there, or take the solution from this lab's page in the book, then run this cell"
            " again."
        )
