"""Sources of the numbers of lab 1 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

ELSEWHERE = {
    "one step, milliseconds": Elsewhere(
        said="the room's own: of so small a model Python's start of each kernel decides"
    )
}
