"""Predict a number, lock it, run, look. Locked predictions are kept in a small JSON file beside the
lab, so that a lost runtime loses no answer.

    predictions = Predictions("01-does-it-fit")           # 01-does-it-fit.predictions.json
    predictions.lock("parameters", 800_000)                # the first number stays, however often
                                                           # the cell runs
    predictions.locked("parameters")                       # an error unless it was predicted
    predictions.compare("parameters", measured)            # predicted, measured, and by how much
                                                           # they differ
    predictions.compare({"peak": 12, "gradients": 0})      # several in one table
    predictions.forget("parameters")                       # to predict anew
"""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from coursekit.recordings.recordings import NOT_RECORDED

from ..show.tables import Table
from .missing_names import ShownAlone, explain_missing_names
from .numbers import is_number, plain_number
from .slips import cause, may_be_negative
from .wrong_numbers import slips_of


class NoNumber(ShownAlone, ValueError):
    """The given prediction is not a number."""


class NotYet(ShownAlone, LookupError):
    """An earlier cell was not run: predict first."""


def _number(name, value):
    if value is ...:
        raise NoNumber(f"{name}: replace the dots with your number.")
    value = plain_number(value)
    try:
        if is_number(value) and abs(value) < math.inf:
            float(value)  # 10**400 is finite, and no float holds it
            return value
        said = repr(value)
    except OverflowError:
        said = "a number of more than 300 digits"
    quotes = " Write it without the quotes." * isinstance(value, str)
    raise NoNumber(f"{name} = {said}: a prediction is one finite number.{quotes}")


class Predictions:
    """The predictions of one lab, by name. `folder` is where the lab runs. In a notebook, a name
    that is missing is said in one sentence from now on."""

    def __init__(self, lab: str, folder: Path | str = "."):
        explain_missing_names()
        self.path = Path(folder) / f"{lab}.predictions.json"
        self._locked, self._measured, self._kept = self._read(), {}, True

    def _read(self):
        if not self.path.is_file():
            return {}
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            return {name: _number(name, value) for name, value in read.items()}
        except (ValueError, AttributeError, RecursionError, OSError) as error:
            raise ValueError(
                f"{self.path} is damaged ({error}): mend it, or delete it and predict again."
            ) from None

    def locked(self, *names: str) -> None:
        """A check for the first line of a cell that works for a while before it compares. Raises
        LookupError when one of these was not predicted: predict first."""
        for name in names:
            if name not in self._locked:
                said = "was not predicted yet: run the cell that locks it, then this one."
                raise NotYet(f"{name} {said}")

    def lock(self, name: str, value: float) -> None:
        """Keep `value` as the prediction of that name; an already locked number stays. Prints the
        locked number."""
        if value is not ... or name not in self._locked:
            value = _number(name, value)
        if name not in self._locked:
            if value < 0 and not may_be_negative(name):
                raise NoNumber(
                    f"{name} = {value}: a count, a size or a share is not below zero; only a change"
                    " can be."
                )
            # another kernel of the same lab may have locked this or another prediction meanwhile
            self._locked = {**self._locked, **self._read()}
            self._write(self._locked if name in self._locked else {**self._locked, name: value})
        locked = self._locked[name]
        changed = "" if value in (locked, ...) else f" (locked; not {value:,})"
        print(f"predicted: {name} = {locked:,}{changed}")

    def _write(self, locked):
        """Write the whole file or nothing: a kernel killed while writing leaves the old file. If
        the folder is read-only, the predictions last as long as the kernel."""
        self._locked = locked
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=self.path.name, delete=False, encoding="utf-8"
            ) as file:
                json.dump(locked, file, indent=1)
            os.replace(file.name, self.path)
        except OSError as error:
            if self._kept:
                print(
                    f"{self.path} cannot be written ({error.strerror}): predictions last as long as"
                    " this kernel."
                )
            self._kept = False

    def forget(self, name: str) -> None:
        """Unlock a prediction, to predict anew."""
        self._write({other: value for other, value in self._locked.items() if other != name})

    def compare(self, name: str | Mapping[str, float], measured: float | None = None) -> Table:
        """A table of the locked prediction and the measured value, or of several: name ->
        measured. Below it a sentence for each wrong number whose cause is known, see slips.py.
        Raises LookupError when nothing was predicted: predict first."""
        found = name if isinstance(name, Mapping) else {name: measured}
        self.locked(*found)
        self._measured.update({one: _number(one, value) for one, value in found.items()})
        causes = {
            one: cause(one, self._locked[one], self._measured[one], self._measured) for one in found
        }
        said = {one: why for one, why in causes.items() if why}
        alone = len(found) == 1
        return self._table(found, [why if alone else f"{one}: {why}" for one, why in said.items()])

    def measured(self, name: str) -> float:
        """The value given to `compare`, for a later cell that continues from it. Raises LookupError
        when nothing was predicted, or nothing compared since this kernel started: run that cell
        first."""
        self.locked(name)
        if name not in self._measured:
            raise NotYet(
                f"{name} was not measured yet: run the cell that predicts it to its end, then this"
                " one."
            )
        return self._measured[name]

    def summary(self, recorded: Mapping[str, str] = MappingProxyType({})) -> Table:
        """Everything predicted in this lab, measured (a dash where it was not yet) and, where
        there is something, recorded on a GPU: name -> words."""
        table = self._table(self._locked)
        rows = table.rows or [["nothing predicted yet", "–", "–", "–"]]
        if all(words == NOT_RECORDED for words in recorded.values()):
            return Table(table.heads, rows)
        rows = [[*row, recorded.get(row[0], NOT_RECORDED)] for row in rows]
        return Table([*table.heads, "recorded on a GPU"], rows)

    def _table(self, names, below=()):
        heads = ["", "predicted", "measured", "predicted / measured"]
        row = lambda one: [one, self._locked[one], self._measured.get(one, "–"), self._ratio(one)]
        return Table(heads, map(row, names), below)

    def _ratio(self, name):
        measured = self._measured.get(name)
        number = measured and slips_of(name).unit != "choice"
        return f"{self._locked[name] / measured:.3g}" if number else "–"
