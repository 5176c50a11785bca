"""Error feedback on five numbers, step by step, as data for the card in the chapter: a gradient
that is the same in every step, of which the largest number is sent, with its error kept or not.

    steps = feedback_steps(1)    # with feedback
    steps[2].sent       # what leaves in step 2
    steps[2].kept       # what is added to the next gradient
"""

from typing import NamedTuple

from coursekit.show.drawing import Drawing
from coursekit.show.frames import FrameCard

SAME_GRADIENT = (5, -3, 2, -1, 1)
FEEDBACK_STEPS = 6
WITHOUT_FEEDBACK, WITH_FEEDBACK = 0, 1
FEEDBACK_LOOK = (
    "The last row is the sum of all that was sent. Without feedback four numbers never leave."
    " With it, the rest is at most what is kept."
)


class FeedbackStep(NamedTuple):
    number: int
    total: tuple  # the gradient, and what was kept
    sent: tuple
    kept: tuple
    summed: tuple  # of all that was sent
    sentence: str
    detail: str


def feedback_steps(feedback: int) -> list[FeedbackStep]:
    """Before the first step, and after each; `feedback` is 1 or 0."""
    nothing = (0,) * len(SAME_GRADIENT)
    kept = summed = nothing
    steps = [
        FeedbackStep(
            *(0, nothing, nothing, nothing, nothing),
            "A rank has five gradients and may send one: the largest, and its place.",
            "Every step has the same gradient here, so that the sums are easy to see.",
        )
    ]
    for number in range(1, FEEDBACK_STEPS + 1):
        total = tuple(g + e * feedback for g, e in zip(SAME_GRADIENT, kept))
        place = max(range(len(total)), key=lambda at: abs(total[at]))
        sent = tuple(value if at == place else 0 for at, value in enumerate(total))
        kept = tuple(a - b for a, b in zip(total, sent))
        summed = tuple(a + b for a, b in zip(summed, sent))
        wanted = tuple(number * g for g in SAME_GRADIENT)
        missing = sum(abs(a - b) for a, b in zip(wanted, summed))
        said = (
            f"Step {number}: number {place + 1} is the largest, so {total[place]} leaves.".replace(
                "-", "\N{MINUS SIGN}"
            )
        )
        if feedback:
            detail = (
                f"What was sent misses {missing} of the sum of all gradients, and so much is kept."
            )
        else:
            detail = f"What was sent misses {missing} of the sum of all gradients: that is lost."
        steps.append(FeedbackStep(number, total, sent, kept, summed, said, detail))
    return steps


def feedback_picture(feedback: int, step: FeedbackStep) -> str:
    """The marks of one step, for a drawing as wide as any still picture."""
    drawing = Drawing(f"feedback-{feedback}-{step.number}", "")
    left, pitch = 106, 56
    kept = "kept for the next" if feedback else "lost"
    wanted = tuple(step.number * g for g in SAME_GRADIENT)
    rows = (
        ("gradient", SAME_GRADIENT, "frame"),
        ("with what was kept" if feedback else "as it is", step.total, "gradients pale"),
        ("sent", step.sent, "communication"),
        (kept, step.kept, "activations pale"),
        ("sum of gradients", wanted, "frame"),
        ("sum of what was sent", step.summed, "parameters pale"),
    )
    for row, (words, numbers, look) in enumerate(rows):
        y = 4 + 34 * row + 12 * (row > 3)
        drawing.text(0, y + 18, words, "small")
        for at, number in enumerate(numbers):
            here = number or look == "frame"
            drawing.box(left + at * pitch + 16, y, pitch - 10, 26, look if here else "frame dashed")
            ink = "middle white" if look == "communication" and number else "middle"
            text = f"{number}".replace("-", "\N{MINUS SIGN}")
            drawing.text(left + at * pitch + 39, y + 18, text, ink if here else "middle soft")
    return "".join(drawing.marks)


FRAMES = FrameCard(
    name="error feedback",
    title="The largest of five numbers is sent, {}, step by step",
    look=FEEDBACK_LOOK,
    label="Error",
    choices={WITHOUT_FEEDBACK: "without feedback", WITH_FEEDBACK: "with feedback"},
    first=WITH_FEEDBACK,
    high=220,
    caption="Six steps in which the largest of five numbers is sent, {}.",
    steps=feedback_steps,
    picture=feedback_picture,
)
