"""One letter means one thing: the table of the notation page is the registry's, and a letter with a
subscript is a quantity of the same kind."""

import re
from collections import defaultdict
from pathlib import Path

from coursekit.formulas import BOOK

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "chapters" / "notation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \$(.+?)\$ \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
PLANNED = {"microbatches"}  # symbols of chapters to come, which no formula has yet
ALIKE = {
    "GPUs": "count",
    "tensors": "count",
    "days": "seconds",
    "tokens/GPU": "tokens",
    "tokens/s": "1/s",
}


def quantities():
    """Every quantity and formula of the book: name -> (symbol, what it counts)."""
    both = {**BOOK.formulas, **BOOK.quantities}
    units = {name: known.unit.split(",")[0] for name, known in both.items()}
    return {name: (both[name].symbol, ALIKE.get(unit, unit)) for name, unit in units.items()}


def letter(symbol):
    """The symbol without subscripts, superscripts and accents."""
    return re.match(r"\\[a-zA-Z]+|.", symbol)[0]


def test_the_table_is_the_registry():
    """Must catch: a symbol that the page prints otherwise than every equation, a name that no
    formula knows, a quantity listed twice."""
    known = quantities()
    names = [name for _, name, _ in ROWS]
    assert len(ROWS) > 20 and len(names) == len(set(names))
    for symbol, name, _ in ROWS:
        assert name in PLANNED or known[name][0] == symbol, f"{name} is {known[name][0]}"


def test_one_letter_one_kind():
    """Must catch: T for tokens, seconds and temporaries, B for a bandwidth and for bytes, m for
    microbatches and for rows of a matrix."""
    kinds = defaultdict(lambda: defaultdict(list))
    for name, (symbol, unit) in quantities().items():
        kinds[letter(symbol)][unit].append(name)
    mixed = {letter: dict(units) for letter, units in kinds.items() if len(units) > 1}
    assert not mixed, f"a letter of several kinds: give one of them another letter: {mixed}"


def test_each_letter_is_explained():
    """Must catch: a letter that equations use and the notation page does not name."""
    there = {letter(symbol) for symbol, _ in quantities().values()}
    said = set(re.findall(r"\$(\\[a-zA-Z]+|[a-zA-Z1])(?:_|\$|\^)", PAGE))
    new = sorted(there - said)
    assert not new, f"chapters/notation.md lacks a row in a table of letters, | $Y$ | ... |: {new}"
