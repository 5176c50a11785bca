"""Sources of a prediction's number on machines that have GPUs, for whoever teaches.

Bytes, messages and sums are the same on any device and need no entry. Of what is timed, a topic's
`elsewhere.py` says where the number comes from, and types none:

    ELSEWHERE = {
        "memory, GB/s": Elsewhere(row="roofline.memory", number=lambda rate: rate / 1e9),
        "link, GB/s": Elsewhere(virtual=lambda: node_link("H100 SXM 80GB") / 1e9),
        "one step, milliseconds": Elsewhere(said="the room's own: Python starts each kernel"),
    }
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coursekit import topics

from ..recordings.recordings import Recording

SAME_ANYWHERE = "the same"
UNRECORDED = "the room's own: nobody has recorded it"
LINK_SET = "near it: the link that the lab sets decides"  # of what a slowed link takes
COMPUTED = "the same: published, or computed by a formula"


@dataclass(frozen=True)
class Elsewhere:
    """The number on one GPU is `number` of the value in the first recording on a GPU that has such
    a row and case; that on several is `virtual()`, by the rates of virtual GPUs, else that on one.
    Where there is neither, `said` says so."""

    row: str = ""
    case: Mapping[str, object] = field(default_factory=dict)
    number: Callable[[float], float] = lambda value: value
    virtual: Callable[[], float] | None = None
    said: str = UNRECORDED

    def on_one(self, recordings: Iterable[Recording]) -> tuple[str, Recording | None]:
        """The words for one GPU, and the recording that they are from."""
        for recording in recordings:
            rows = recording.find(self.row, **self.case) if self.row else []
            if rows and recording.hardware.kind == "gpu":
                task = rows[0].case.get("task")
                of = f", of {task}" if task else ""
                return f"{to_three_digits(self.number(rows[0].value))}, `{self.row}`{of}", recording
        return self.said, None

    def on_several(self, on_one: str) -> str:
        if self.virtual:
            return f"{to_three_digits(self.virtual())}, *virtual*"
        return SAME_ANYWHERE if on_one == SAME_ANYWHERE else "as on one"


def to_three_digits(number: float) -> str:
    """A whole number as it is, another to three digits."""
    if isinstance(number, int):
        return f"{number:,}"
    rounded = float(f"{number:.3g}")
    return f"{round(rounded):,}" if rounded == round(rounded) else f"{rounded:g}"


def elsewhere(name: str) -> Elsewhere:
    """The entry of a prediction; "the same" where no topic has one."""
    for module in topics.modules("elsewhere"):
        if name in module.ELSEWHERE:
            return module.ELSEWHERE[name]
    return Elsewhere(said=SAME_ANYWHERE)
