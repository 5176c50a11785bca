"""Sources of the numbers of lab 12 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

SLEEPS = Elsewhere(said="the same: store and step sleep")
ELSEWHERE = {
    f"{name}, {unit}": SLEEPS
    for name, unit in [
        *(
            (f"{count} worker{'s' * (count != 'one')}", "ms a step")
            for count in ("no", "one", "two", "four")
        ),
        ("wait for the late batch", "ms"),
    ]
}
