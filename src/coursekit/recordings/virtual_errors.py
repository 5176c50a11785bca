"""How far virtual seconds are from recorded and from published ones: of the steps that nothing was
fitted to.

    errors_of_class("FSDP on H100")     # (steps, lowest ratio, highest ratio), the class's rates
    errors_of_class("FSDP on H100, as it is")       # at this clock's rates
    how_near("FSDP on H100")            # a sentence to print beside virtual seconds

data/virtual_errors.csv has them to two digits, from the recording of `bench.published` and
`bench.rungs` in measured/.
"""

from typing import NamedTuple

from coursekit.formulas.presets import records_of


class HeldOut(NamedTuple):
    """Virtual seconds over others."""

    steps: int
    lowest: float
    highest: float

    def __str__(self):
        return f"{self.lowest:.2f} to {self.highest:.2f}"


AS_IT_IS = ", as it is"  # a class at the rates of recorded_gpu
OF_ONE_GPU = "H100, recorded"  # the other classes are of published steps
VIRTUAL_ERRORS = records_of("virtual_errors.csv", HeldOut)


def errors_of_class(name: str = OF_ONE_GPU) -> HeldOut:
    """Classes of published steps are those of coursekit.planner.speeds."""
    return VIRTUAL_ERRORS[name]


def how_near(*classes: str) -> str:
    """The sentence beside virtual seconds of steps that are like those of the classes."""
    near = [
        f"{errors_of_class(name + AS_IT_IS)} times those of {fitted.steps} published ({name};"
        f" {fitted} with rates fitted to others of the class)"
        for name, fitted in zip(classes, map(errors_of_class, classes))
    ]
    published = f", and {', '.join(near)}" if near else "; no published step of this kind was run"
    return (
        f"By this clock, steps to which nothing was fitted took {errors_of_class()} times their"
        f" seconds as recorded on an H100{published}."
    )
