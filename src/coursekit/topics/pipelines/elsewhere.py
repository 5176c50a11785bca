"""Sources of the numbers of lab 8 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

ASLEEP = "near it: the stages sleep, and messages take a few percent"

ELSEWHERE = {
    "1F1B asleep, milliseconds": Elsewhere(said=ASLEEP),
    "H1 asleep, milliseconds": Elsewhere(said=ASLEEP),
}
