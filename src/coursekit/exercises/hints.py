"""Help in two steps, for a reader who is stuck: a hint, then what a solution does and where one is.

hint(mean_of_the_gradients)         # call it again for more
"""

from collections import Counter

from .checker import MARKUP, Exercise

WHERE = "The solution is on this lab's page in the book, folded up below the exercise."
_asked: Counter[str] = Counter()  # how often, by the name of the exercise


class Hint(str):
    """One sentence or two, which a notebook wraps."""

    def __repr__(self):
        return str(self)

    def _repr_markdown_(self):
        return MARKUP.sub(r"\\\g<0>", str(self))


def hint(exercise: Exercise) -> Hint:
    """The next of two hints: what to look at, then what a right solution does."""
    if not isinstance(exercise, Exercise):
        raise TypeError(
            f"hint wants an exercise, this is a {type(exercise).__name__}: give it the first"
            " argument of the check."
        )
    _asked[exercise.name] += 1
    if _asked[exercise.name] == 1 and exercise.hint:
        return Hint(f"{exercise.hint} (Call hint again for more.)")
    return Hint(f"What is right: {exercise.right} {WHERE}")
