"""Sources of the numbers of lab 3 on machines that have GPUs."""

from coursekit.exercises.elsewhere import Elsewhere

ELSEWHERE = {"peak of the step, bytes": Elsewhere(row="step.peak", case={"optimizer": "foreach"})}
