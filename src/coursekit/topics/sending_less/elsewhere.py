"""Sources of the numbers of lab 16 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

ELSEWHERE = {
    "signs over 100 Mbit/s, times as fast": Elsewhere(
        said="the room's own: the link is rehearsed, and a GPU packs in less time"
    ),
}
