"""The tree of formulas below a number, with numbers, units and sources.

    explain("states_bytes", model="GPT-2 124M", recipe="fp32 Adam")

prints the tree and returns the values that were asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .registry import BOOK, Formula, Registry, show
from .subset import expression_of

DECIMAL_UNITS = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"))


@dataclass(frozen=True)
class TreeLine:
    """One quantity of the tree. `origin` says where the number is from: "computed", "given",
    "assumed" or the preset that gives it. `again` marks what is explained further up."""

    name: str
    level: int
    value: int | float
    unit: str
    meaning: str
    origin: str
    expression: str = ""
    source: str = ""
    measured_by: str = ""
    again: bool = False

    def texts(self) -> Iterator[str]:
        number = f"{self.name} = {amount(self.value, self.unit)}"
        if self.again:
            yield f"{number}, as above"
        elif self.origin == "computed":
            yield f"{number}: {self.meaning}"
            yield f"    = {self.expression}"
            yield f"    source: {self.source}; measured by {self.measured_by}"
        else:
            yield f"{number} ({self.origin}): {self.meaning}"


@dataclass(frozen=True)
class Explanation:
    """The lines of the trees below `asked`, and what is assumed because nobody gave it."""

    asked: tuple
    lines: tuple
    assumed: dict
    presets: tuple  # pairs (kind and name, source)

    @property
    def values(self) -> dict:
        return {line.name: line.value for line in self.lines if line.name in self.asked}

    def __str__(self) -> str:
        texts = ["  " * line.level + text for line in self.lines for text in line.texts()]
        if self.presets:
            texts += ["", "Presets:"]
            texts += [f"  {name}: {source}" for name, source in self.presets]
        if self.assumed:
            texts += ["", "Assumed, because nobody gave it:"]
            texts += [f"  {name} = {show(value)}" for name, value in self.assumed.items()]
        return "\n".join(texts)


def explained(names, *, allow_unused=False, registry: Registry = BOOK, **given):
    """The Explanation of the quantities with these names, otherwise as in evaluate()."""
    asked = (names,) if isinstance(names, str) else tuple(names)
    if not asked:
        raise TypeError("explain() without a name: say which quantity, such as 'states_bytes'.")
    values = registry.solve(asked, given, allow_unused)
    flat, lines, done = registry.expand(given), [], set()
    origins = {name: "given" for name in flat}
    named = []
    for kind, presets in registry.presets.items():
        if (name := given.get(kind)) is not None:
            named.append((f"{kind} {name}", presets[name].source))
            held = set(presets[name].quantities) - set(given)
            origins.update((one, f"{kind} {name}") for one in held)

    def visit(name, level):
        found = registry.find(name)
        computed = isinstance(found, Formula) and name not in flat
        again = name in done
        facts = dict(
            name=name,
            level=level,
            value=values[name],
            unit=found.unit,
            meaning=" ".join(found.meaning.split()),
            again=again,
            origin="computed" if computed else origins.get(name, "assumed"),
        )
        if computed:
            facts |= dict(
                expression=expression_of(found.function),
                source=found.source,
                measured_by=found.measured_by,
            )
        lines.append(TreeLine(**facts))
        done.add(name)
        if computed and not again:
            for need in found.needs:
                visit(need, level + 1)

    for name in asked:
        visit(name, 0)
    _, inputs = registry.resolve(asked, flat)
    assumed = registry.assumed(inputs, flat)
    return Explanation(asked, tuple(lines), assumed, tuple(named))


def explain(names, *, allow_unused=False, **given):
    """Print what the quantities follow from, as a tree with numbers, units, sources and, at its
    end, what was assumed; return the values of `names`. Takes what evaluate() takes: presets by
    their kind, as in model="GPT-2 124M", and quantities by name."""
    found = explained(names, allow_unused=allow_unused, **given)
    print(found)
    return found.values


def amount(value, unit) -> str:
    """A number with its unit; large bytes once more in GB."""
    number = f"{value:,.6g}" if isinstance(value, float) else show(value)
    unit = "" if unit in ("count", "fraction") else f" {unit}"
    if unit == " bytes" and value >= 10**6:
        size, name = next(pair for pair in DECIMAL_UNITS if value >= pair[0])
        return f"{number} bytes ({value / size:.3g} {name})"
    return number + unit
