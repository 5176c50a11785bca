"""Sources of the numbers of lab 20 on machines that have GPUs."""

from coursekit.exercises.elsewhere import COMPUTED, Elsewhere

ELSEWHERE = {
    "175B, core of attention again, seconds": Elsewhere(said=COMPUTED),
    "175B, each layer again, seconds": Elsewhere(said=COMPUTED),
    "t = 4 in nodes of four, tokens/s": Elsewhere(said=COMPUTED),
    "t = 4 over 100 Gbit/s, tokens/s": Elsewhere(said=COMPUTED),
}
