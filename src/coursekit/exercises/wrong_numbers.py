"""Wrong numbers that readers lock, as text: a topic's `predictions.md`, by prediction.

    # Wrong numbers that readers of lab 3 lock

        logits = 102,926,336

    ## peak of the step, bytes

    ranks 4; within 0.0005

    - 1 x - 2 * logits: Two tensors of logits are missing.
    - 5, 6, 1/3 x: One cause of several numbers: 5, 6 and a third of the measured number.
    - 10 to 20 x: The sentence is true of every number between.
    - `stage 3, bytes`: The measured number of another prediction is told by its name.

Indented lines name numbers that several sentences need. The line below a heading says what the
prediction is, if anything: the number of `ranks` that share it, its `unit` where its name says
another one (`none`, or `choice` for a number that stands for something, of which no ratio is told),
how near is right (`within`), and `these alone` where no slip of any quantity is tried. Bytes,
messages and sums are the same on any device; of what is timed the line says for whoever teaches
where the number comes from `on GPUs`, in words or in Python: a recorded row, or rates of virtual
GPUs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from coursekit import topics

from .mistakes import sections


@dataclass(frozen=True)
class Slip:
    """A wrong number that readers really lock, and the sentence that helps. The number is so many
    `times` the measured one, or that of another prediction, `of`, and so much `more`. With two such
    pairs the sentence is true of every number between; where the measured number is among them,
    nothing is said."""

    sentence: str
    times_and_more: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    of: str = ""

    def ends(self, right: float, known: Mapping[str, float]) -> tuple[float, float] | None:
        """The least and the largest wrong number, which are one without a range; None where another
        number of the lab is not measured yet."""
        base = known.get(self.of) if self.of else right
        if base is None:
            return None
        ends = [times * base + more for times, more in self.times_and_more]
        return min(ends), max(ends)


@dataclass(frozen=True)
class Slips:
    """Knowledge about a prediction: its slips, the number of ranks that shares it, its unit where
    the name says another or none, and how near counts as right (a share of the measured number; of
    percent, points). Where `general` is False, only its own slips are tried."""

    slips: tuple[Slip, ...] = ()
    ranks: int = 1
    unit: str | None = None
    within: float | None = None
    general: bool = True
    on_gpus: str = "the same"


def slips_of(name: str) -> Slips:
    """The slips of the topic that lists the prediction; a list without any elsewhere."""
    return _listed().get(name, Slips())


@cache
def _listed() -> dict[str, Slips]:
    folders = (files(f"coursekit.topics.{topic}") for topic in topics.names())
    texts = (folder.joinpath("predictions.md") for folder in folders)
    listed = [slips_in(text.read_text("utf-8")) for text in texts if text.is_file()]
    return {name: slips for one in listed for name, slips in one.items()}


def slips_in(text: str) -> dict[str, Slips]:
    """The slips of a file, by prediction. Raises ValueError for a line that says something else."""
    named = re.findall(r"(?m)^    (\w+) = (.+)", text.partition("\n## ")[0])
    numbers = {name: _number(value, {}) for name, value in named}
    found = {}
    for name, rest in sections(text):
        about, *items = re.split(r"(?m)^- ", rest)
        items = [" ".join(item.split()) for item in items]
        try:
            slips = tuple(slip for item in items for slip in _slips(item, numbers))
            found[name] = Slips(slips, **_about(" ".join(about.split()), numbers))
        except (ValueError, SyntaxError, NameError, TypeError) as error:
            raise ValueError(f"predictions.md, {name}: {error}") from None
    return found


def _number(words: str, numbers: dict[str, float]) -> float:
    return eval(words.replace(",", ""), {"__builtins__": {}}, numbers)


def _slips(item: str, numbers: dict[str, float]) -> list[Slip]:
    wrong, colon, sentence = re.fullmatch(r"(`.+?`|[^:]*)(: )?(.*)", item).groups()
    if not colon:
        raise ValueError(f"{item!r} is not a number, a colon and a sentence.")
    if wrong.startswith("`"):
        return [Slip(sentence, of=wrong.strip("`"))]
    return [Slip(sentence, _times_and_more(one, numbers)) for one in wrong.split(", ")]


def _times_and_more(words: str, numbers: dict[str, float]) -> tuple[tuple[float, float], ...]:
    ends, times, more = re.fullmatch(r"(.+?)( x)?((?<= x) [-+] .+)?", words).groups()
    found = [_number(one, numbers) for one in ends.split(" to ")]
    beside = _number(more or "0", numbers)
    return tuple((one, beside) if times else (0, one) for one in found)


def _about(words: str, numbers: dict[str, float]) -> dict:
    found = {}
    for said in filter(None, words.split("; ")):
        key, _, value = said.partition(" ")
        if said == "these alone":
            found["general"] = False
        elif said.startswith("on GPUs "):
            found["on_gpus"] = said.removeprefix("on GPUs ")
        elif key == "unit":
            found[key] = value.replace("none", "")
        elif key in ("ranks", "within"):
            found[key] = _number(value, numbers)
        else:
            raise ValueError(f"{said!r} is nothing that a prediction has.")
    return found
