"""Every formula gives what it gave when the values were recorded, for 34 configurations. After a
change that is meant, write the values anew, and read the diff: python
tests/engines/test_formula_values.py"""

import json
from pathlib import Path

import pytest

from coursekit.formulas import InvalidQuantity, evaluate

STORED = Path(__file__).with_name("formula_values.json")
BEFORE = json.loads(STORED.read_text())
PLACES = range(len(BEFORE["given"]["layers"]))


def values_at(place, names):
    """Name -> its value, or the sentence with which it is refused."""
    given = {name: row[place] for name, row in BEFORE["given"].items()}
    refused = {name for name in names if isinstance(BEFORE["values"][name][place], str)}
    try:
        found = evaluate([*names - refused], allow_unused=True, **given)
    except InvalidQuantity:  # one that was not refused: ask for each by itself
        found, refused = {}, names
    for name in refused:
        try:
            found[name] = evaluate([name], allow_unused=True, **given)[name]
        except InvalidQuantity as said:
            found[name] = str(said)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_the_values_are_what_they_were(place):
    """Whole quantities to the unit, floats to rounding, refusals in the same words. Must catch: a
    formula that is gone; a term lost in a sum that was generated, a place of the step with
    another's parts, a maximum that names the wrong place where two are equal."""
    wanted = {name: row[place] for name, row in BEFORE["values"].items()}
    found = values_at(place, set(wanted))
    assert {
        name: (was, found[name])
        for name, was in wanted.items()
        if found[name] != (pytest.approx(was, rel=1e-12) if isinstance(was, float) else was)
    } == {}


def record():
    found = [values_at(place, set(BEFORE["values"])) for place in PLACES]
    values = {name: [each[name] for each in found] for name in BEFORE["values"]}
    parts = []
    for part, table in dict(given=BEFORE["given"], values=values).items():
        rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
        parts.append(f'"{part}": {{\n' + ",\n".join(rows) + "\n}")
    STORED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    record()
