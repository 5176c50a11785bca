"""Guards for a cell of a lab that goes on with the reader's own function.

world.run(f, must_be_right(exercise, solution))   # raises NotYet unless the check passes
bytes_of = gives_numbers(exercise, solution)      # also, and its numbers are Python's
"""

from collections.abc import Callable

from .checker import Exercise, check, own_name
from .numbers import plain_numbers
from .predictions import NotYet


def must_be_right(exercise: Exercise, solution: Callable) -> Callable:
    """The solution. Ranks run what passes its check and nothing else, so a blank that is left, or
    an answer that would hang, is a sentence and not the tracebacks of four ranks."""
    if not check(exercise, solution):
        raise NotYet(
            f"{own_name(solution, exercise.name)} is not right yet: its check says why. Repair it"
            " there, or take the solution from this lab's page in the book, then run this cell"
            " again."
        )
    return solution


def gives_numbers(exercise: Exercise, solution: Callable) -> Callable:
    """The solution, whose numbers later cells can round, print and compare: a check takes NumPy's
    numbers and tensors of one element as well. Raises NotYet unless the check passes."""
    must_be_right(exercise, solution)
    return lambda *given: plain_numbers(solution(*given))
