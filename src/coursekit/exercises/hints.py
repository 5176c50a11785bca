"""Help in three steps, for a reader who is stuck: what to look at, a half-written solution, and
what a solution does and where one is.

hint()                              # for the exercise whose check failed last, which it names
hint(mean_of_the_gradients)         # call it again for more
"""

from .checker import MARKUP, Exercise, NoExercise, failed

WHERE = "The solution is on this lab's page in the book, folded up below the exercise."
MORE = "(Call hint again for more.)"
_asked: list[Exercise] = []  # two exercises may have one name


class Hint(str):
    """One sentence or two, which a notebook wraps, and code below them."""

    code = ""

    def __repr__(self):
        return f"{self}\n\n{self.code}" if self.code else str(self)

    def _repr_markdown_(self):
        words = MARKUP.sub(r"\\\g<0>", str(self))
        return f"{words}\n\n```python\n{self.code}\n```" if self.code else words


def hint(exercise: Exercise | None = None) -> Hint:
    """The next hint: what to look at, then a half-written solution, then what a right one does.
    Without an argument for the exercise whose check failed last."""
    named = ""
    if exercise is None and failed:
        exercise = failed[-1]
        named = f"{exercise.name}: "
    if not isinstance(exercise, Exercise):
        said = f"hint wants an exercise, this is a {type(exercise).__name__}"
        if exercise is None:
            said = "no check has failed since this kernel started, so hint needs the exercise"
        raise NoExercise(f"{said}: give it the first argument of the check.")
    steps = [Hint(f"{named}What is right: {exercise.right} {WHERE}")]
    if exercise.half:
        half = f"{named}This is half of one solution; the dots are yours. {MORE}"
        steps.insert(0, Hint(half))
        steps[0].code = exercise.half
    if exercise.hint:
        steps.insert(0, Hint(f"{named}{exercise.hint} {MORE}"))
    _asked.append(exercise)
    asked = sum(one is exercise for one in _asked)
    return steps[min(asked, len(steps)) - 1]
