"""A card of steps whose pictures are drawn in Python, as data: a topic's `steps.py` has it as
FRAMES, and the directive {frames} of bookkit/frames.py shows it by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FrameCard:
    name: str
    title: str  # with {} for the words of the choice, as in `caption`
    look: str  # what to look at
    label: str  # of the choices
    choices: Mapping[int, str]  # value -> the words on its button
    first: int  # the choice that is shown at first
    high: int  # units of a picture, which is as wide as any still picture
    caption: str  # of the table of steps
    steps: Callable[[int], list]  # of a choice; a step has a sentence and a detail
    picture: Callable  # (choice, step) -> the marks of a drawing

    def data(self, choice: int) -> dict:
        """All steps of a choice as the page needs them."""
        steps = self.steps(choice)
        return dict(
            kind="frames",
            high=self.high,
            title=self.title.format(self.choices[choice]),
            frames=[self.picture(choice, step) for step in steps],
            say=[[step.sentence, step.detail] for step in steps],
        )
