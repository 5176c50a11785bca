"""Measurements from machines that a reader may not have: one JSON file for each run, in measured/,
validated when written and when read.

    {"schema": 1,
     "hardware": {"device": "NVIDIA H200", "kind": "gpu", "count": 1, "memory_bytes": 150754820096},
     "versions": {"python": "3.12.3", "torch": "2.13.0", "cuda": "13.0", "nccl": "2.29.7",
     "shardlab": "0.1.0"}, "date": "2026-11-21", "command": "make gpu", "rows": [{"name":
     "step.peak", "case": {"layers": 4, "optimizer": "foreach"}, "value": 536550616, "unit":
     "bytes",
               "formula": "peak_bytes", "predicted": 536550616}]}

A row is one number: its `name` (dotted, the part before the dot is its group), its `case`, its
value and unit. A row with a prediction has `formula` and `predicted`; the difference is shown,
never tuned away. A row that was measured wrongly keeps its value and says why in `suspect`; no page
or lab prints it. Imports no torch: pages read recordings too.
"""

import datetime
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..show.format import STYLE_OF_UNIT, format_as

SCHEMA = 1
# a wheel carries the repository's recordings there: see setup.py
SHIPPED = Path(__file__).resolve().parents[1] / "data"
REPOSITORY = Path(__file__).resolve().parents[3]
NOT_RECORDED = "not yet recorded on a GPU"
DEVICE_KINDS = "gpu", "cpu", "virtual"
ROW_UNITS = ("bytes", "seconds", "FLOP/s", "bytes/s", "tokens/s", "count", "ratio", "nats")


class InvalidRecording(ValueError):
    """A recording that breaks the schema; the message says where, the value and the rule."""


def _require(condition, where, value, rule):
    if not condition:
        raise InvalidRecording(f"{where} = {value!r}: {rule}.")


def _check(of, where, **rules):
    """Require each attribute to keep its rule: name=(whether it does, the rule)."""
    for name, (condition, rule) in rules.items():
        _require(condition, f"{where}{name}", getattr(of, name), rule)


def _is_number(value):
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and abs(value) <= sys.float_info.max  # not nan, not 10**400


@dataclass(frozen=True)
class Row:
    """One measured number."""

    name: str
    value: float
    unit: str
    case: dict[str, Any] = field(default_factory=dict)
    formula: str = ""
    predicted: float | None = None
    suspect: str = ""  # why the value is not that of its name

    def __post_init__(self):
        words = isinstance(self.name, str) and all(map(str.isidentifier, self.name.split(".")))
        _check(self, "", name=(words, "a row is named by words joined by dots, such as step.peak"))
        plain = isinstance(self.case, dict) and all(
            isinstance(v, (str, int, float, bool)) for v in self.case.values()
        )
        predicted = self.predicted is not None
        both = "a prediction names its formula, and a formula gives a prediction"
        in_words = "why the value is wrong, in words, or an empty text"
        _check(
            self,
            f"{self.name}: ",
            value=(_is_number(self.value), "a finite number"),
            unit=(self.unit in ROW_UNITS, f"one of {', '.join(ROW_UNITS)}"),
            predicted=(not predicted or _is_number(self.predicted), "a finite number or null"),
            formula=(bool(self.formula) == predicted, both),
            case=(plain, "names with text, numbers or true and false"),
            suspect=(isinstance(self.suspect, str), in_words),
        )

    @property
    def key(self) -> tuple:
        """The name and the case, which stand once in a recording."""
        return self.name, tuple(sorted(self.case.items()))


@dataclass(frozen=True)
class Hardware:
    """The machine: `kind` is gpu, cpu or virtual (ranklab.virtual), `memory_bytes` that of one
    device."""

    device: str
    kind: str
    count: int
    memory_bytes: int

    def __post_init__(self):
        counted = lambda value: type(value) is int and value >= 1
        _check(
            self,
            "hardware: ",
            device=(isinstance(self.device, str) and self.device.strip(), "the device's name"),
            kind=(self.kind in DEVICE_KINDS, " or ".join(DEVICE_KINDS)),
            count=(counted(self.count), "a whole number of at least 1"),
            memory_bytes=(counted(self.memory_bytes), "a whole number of at least 1"),
        )


@dataclass(frozen=True)
class Recording:
    """One run on one machine."""

    hardware: Hardware
    versions: dict[str, str]
    date: str
    command: str
    rows: tuple[Row, ...]

    def __post_init__(self):
        for name in ("python", "torch", "shardlab"):
            found, rule = self.versions.get(name), "each recording names the version it ran with"
            _require(isinstance(found, str) and found, f"versions: {name}", found, rule)
        plain = False
        with suppress(TypeError, ValueError):
            plain = datetime.date.fromisoformat(self.date).isoformat() == self.date
        again = isinstance(self.command, str) and self.command
        _check(
            self,
            "",
            date=(plain, "a day as 2026-11-21, so that days sort as text"),
            command=(again, "the command that anyone can run again"),
            rows=(len(self.rows) > 0, "at least one"),
        )
        keys = [row.key for row in self.rows]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        _require(twice is None, "rows", twice, "each name and case stands once")

    @property
    def sound(self) -> tuple[Row, ...]:
        """The rows that are not suspect."""
        return tuple(row for row in self.rows if not row.suspect)

    def find(self, name: str, /, **case) -> list[Row]:
        """The sound rows of that name whose case agrees with what is given."""
        return [row for row in self.sound if row.name == name and case.items() <= row.case.items()]

    @property
    def label(self) -> str:
        """The name on pages: "recorded on NVIDIA H200, 2026-11-21"."""
        many = f"{self.hardware.count} x " * (self.hardware.count > 1)
        return f"recorded on {many}{self.hardware.device}, {self.date}"

    @property
    def file_name(self) -> str:
        words = "".join(c if c.isalnum() else "-" for c in self.hardware.device.lower())
        return f"{'-'.join(filter(None, words.split('-')))}-{self.date}.json"

    def after(self, earlier: "Recording") -> "Recording":
        """This recording with the rows of an earlier one of the same day that it does not replace.

        Raises InvalidRecording where the machine or the versions differ."""
        for name in ("hardware", "versions", "date"):
            mine, theirs = getattr(self, name), getattr(earlier, name)
            _require(mine == theirs, name, theirs, f"only a recording of {mine} goes on here")
        replaced = {row.key for row in self.rows}
        kept = [row for row in earlier.rows if row.key not in replaced]
        commands = dict.fromkeys([*earlier.command.split(" && "), *self.command.split(" && ")])
        return replace(self, command=" && ".join(commands), rows=(*kept, *self.rows))

    def write(self, folder: Path) -> Path:
        """Write the recording as `folder`/<device>-<date>.json and return that path. An old file
        stays until the new one is whole."""
        path = Path(folder) / self.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        part, content = path.with_suffix(".part"), {"schema": SCHEMA, **asdict(self)}
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
        return path


def read_recording(path: Path) -> Recording:
    """The recording in the file, validated. Raises InvalidRecording, which names the file."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe would keep whoever reads it waiting
        raise InvalidRecording(f"{path.name} is not a file: move it out of the folder.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema = content.pop("schema", None) if isinstance(content, dict) else content
        known = schema == SCHEMA and schema is not True
        _require(known, "schema", schema, f"this version reads schema {SCHEMA}")
        rows = tuple(Row(**row) for row in content.pop("rows"))
        return Recording(hardware=Hardware(**content.pop("hardware")), rows=rows, **content)
    except Exception as error:  # any error that another text, or a file closed to us, can cause
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InvalidRecording(f"{path.name}: {said}") from None


def read_all(folder: Path) -> list[Recording]:
    """Every recording in a folder, newest first; an absent folder holds none."""
    found = [read_recording(path) for path in sorted(Path(folder).glob("*.json"))]
    return sorted(found, key=lambda recording: recording.date, reverse=True)


def nearby(start: Path | str = ".") -> list[Recording]:
    """Every recording in the folder `measured` of `start` or of the folder around it, newest first:
    in the repository labs run beside that folder. Otherwise the recordings of an installed
    shardlab, as on Colab. A file that is not a recording is named and left out."""
    for folder in (Path(start), Path(start).resolve().parent, SHIPPED):
        found = []
        for path in sorted((folder / "measured").glob("*.json")):
            try:
                found.append(read_recording(path))
            except InvalidRecording as error:
                print(f"A recording is not used: {error}")
        if found:
            return sorted(found, key=lambda recording: recording.date, reverse=True)
    return []


def recording_of(name: str) -> Recording:
    """The newest recording that has such a row, for a picture. Raises LookupError where none
    has."""
    for recording in nearby(REPOSITORY):
        if recording.find(name):
            return recording
    raise LookupError(f"no recording has {name}: record it, as runs.py says.")


def recorded(recordings: Iterable[Recording], name: str, /, **case) -> str:
    """The value and device of the first GPU recording with such a row: "536,550,616 bytes on NVIDIA
    H200, 2026-11-21"."""
    for recording in recordings:
        rows = recording.find(name, **case) if recording.hardware.kind == "gpu" else []
        if rows:
            value, unit = rows[0].value, rows[0].unit
            said = f"{value:,} {unit}" if isinstance(value, int) else f"{value:.3g} {unit}"
            said = format_as(value, STYLE_OF_UNIT[unit]) if unit in ("bytes/s", "FLOP/s") else said
            return f"{said} {recording.label.removeprefix('recorded ')}"
    return NOT_RECORDED


def measured_or_recorded(
    measure: Callable[[], Iterable[Row]] | None, recordings: Iterable[Recording], why_not: str
) -> tuple[list[Row], str]:
    """(rows, where they were measured): the rows of measure() on this machine, or if it is None the
    rows of the first recording on a GPU. Without either there are no rows, and `why_not` says why
    nothing was measured."""
    if measure is not None:
        return list(measure()), "measured on this machine, now"
    for recording in recordings:
        if recording.hardware.kind == "gpu":
            return list(recording.sound), recording.label
    return [], f"{why_not}; {NOT_RECORDED}"
