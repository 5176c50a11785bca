"""Sources of the numbers of lab 5 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

ELSEWHERE = {
    "waiting that overlap saves, percent": Elsewhere(
        said="the room's own: these ranks stay on the CPU"
    )
}
