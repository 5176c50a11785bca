"""Wrong numbers that readers lock, as text: a topic's `predictions.md`, by prediction.

    # Wrong numbers that readers of lab 3 lock

        logits = 102,926,336

    ## peak of the step, bytes

    ranks 4; within 0.0005; parts 3 tensors of logits (logits each) + 0 gradients (64,363,520 each)

    - 1 x - 2 * logits: Two tensors of logits are missing.
    - 5, 6, 1/3 x: One cause of several numbers: 5, 6 and a third of the measured number.
    - 10 to 20 x: The sentence is true of every number between.
    - `stage 3, bytes`: The measured number of another prediction is told by its name.

Indented lines name numbers that several sentences need. The line below a heading says what the
prediction is, if anything: the number of `ranks` that share it, its `unit` where its name says
another one (`none`, or `choice` for a number that stands for something, of which no ratio is told),
how near is right (`within`) and explained (`fit`), the `parts` that add up to it, the `factors` in
it (`4 heads * 512 tokens`), and `these alone` where no slip of any quantity is tried.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from coursekit import topics

from .mistakes import sections


@dataclass(frozen=True)
class Slip:
    """A wrong number that readers really lock, and the sentence that helps. The number is one of
    its own; else the measured one, or that of another prediction, `of`, `times` so much and so much
    `more`. With `upto`, another number, or other times where there is no number, the sentence is
    true of every number from there up to that one; where the measured number is among them, nothing
    is said."""

    sentence: str
    number: float | None = None
    upto: float | None = None
    times: float = 1.0
    of: str = ""
    more: float = 0

    def ends(self, right: float, known: Mapping[str, float]) -> tuple[float, float] | None:
        """The least and the largest wrong number, which are one without a range; None where another
        number of the lab is not measured yet."""
        if self.number is not None:
            first, last = self.number, self.upto
        elif self.of and self.of not in known:
            return None
        else:
            base = known[self.of] if self.of else right
            first = self.times * base + self.more
            last = None if self.upto is None else self.upto * base
        last = first if last is None else last
        return min(first, last), max(first, last)


@dataclass(frozen=True)
class Slips:
    """Knowledge about a prediction: its slips, the number of ranks that shares it, its unit where
    the name says another or none, and how near counts as right (a share of the measured number; of
    percent, points). `parts` add up to the number: name -> (size, how many), none of what readers
    add though it is not there. `factors` are in it: how many -> of what. Where `general` is False,
    only its own slips are tried."""

    slips: tuple[Slip, ...] = ()
    ranks: int = 1
    unit: str | None = None
    within: float | None = None
    general: bool = True
    parts: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    factors: Mapping[int, str] = field(default_factory=dict)
    fit: float = 0.015  # how near to a general slip; more where readers round


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
    return [Slip(sentence, **_wrong(one, numbers)) for one in wrong.split(", ")]


def _wrong(words: str, numbers: dict[str, float]) -> dict[str, float]:
    first, last, times, more = re.fullmatch(r"(.+?)(?: to (.+?))?( x)?( [-+] .+)?", words).groups()
    kind = "times" if times else "number"
    if more and not times:
        return {"number": _number(words, numbers)}
    ends = {kind: first, "upto": last, "more": more}
    return {kind: _number(one, numbers) for kind, one in ends.items() if one}


def _about(words: str, numbers: dict[str, float]) -> dict:
    found = {}
    for said in filter(None, words.split("; ")):
        key, _, value = said.partition(" ")
        if said == "these alone":
            found["general"] = False
        elif key == "unit":
            found[key] = value.replace("none", "")
        elif key == "parts":
            parts = [re.fullmatch(r"(\d+) (.+) \((.+) each\)", part) for part in value.split(" + ")]
            found[key] = {part[2]: (_number(part[3], numbers), int(part[1])) for part in parts}
        elif key == "factors":
            factors = [factor.split(" ", 1) for factor in value.split(" * ")]
            found[key] = {int(many): of for many, of in factors}
        elif key in ("ranks", "within", "fit"):
            found[key] = _number(value, numbers)
        else:
            raise ValueError(f"{said!r} is nothing that a prediction has.")
    return found
