"""A small registry that resolves names the way pytest resolves fixtures.

A formula is a short function of `q`. What it names, `q.layers`, is what it depends on: other
formulas, or quantities that the reader gives.

    class Parts(BOOK.section(source="...", measured_by="tests/...")):
        def layer_parameters(q):
            r'''\\Psi_\\ell | parameters | parameters of one layer'''
            return q.attention_parameters + q.mlp_parameters + q.norm_parameters

    Parts.layer_parameters(hidden=768, heads=12, ...)            # resolves what it needs, returns
    # an exact integer
    evaluate(["states_bytes"], parameters=175_000_000_000, ...)  # a name that is given takes the
    # place of its formula

Whole quantities are exact below 2^53 and refused from there on, because there the page's JavaScript
would round; FLOPs and seconds are floats. Every refusal is one sentence with the value and the
rule; the page shows the same sentence beside the control.
"""

import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from .asking import MissingQuantity, UnknownName, UnknownPreset, refuse_unused
from .subset import EXACT_LIMIT, DividendTooLarge, Values, check_subset, formula_of, needs_of

# counted, so exact; every other unit is a float
WHOLE_UNITS = ("bytes", "parameters", "tensors", "tokens", "GPUs", "count")


class InvalidQuantity(ValueError):
    """A value that breaks a rule. `quantity` is the name to mark, `value` what was given, the
    message says value and rule."""

    def __init__(self, quantity, value, message):
        super().__init__(message)
        self.quantity, self.value = quantity, value


class TooLarge(InvalidQuantity):
    """A whole quantity of 2^53 or more, where the page could no longer count exactly."""

    def __init__(self, quantity, value):
        why = "from 2^53 = 9,007,199,254,740,992 on a count is no longer exact, so it is refused."
        super().__init__(quantity, value, f"{quantity} = {show(value)}: {why}")


@dataclass(frozen=True)
class Quantity:
    """Something the reader gives. `least` and `most` are part of the range, unless `least` is
    written `above`."""

    name: str
    symbol: str
    unit: str
    meaning: str
    least: float = 1
    most: float | None = None  # None: up to what a count, or a float, can be
    above: bool = False  # True: the value must be larger than `least`, not equal to it
    usual: float | None = None  # what is assumed where nobody gives it; None: it must be given

    def __post_init__(self):
        if self.most is None:
            object.__setattr__(self, "most", EXACT_LIMIT if self.whole else math.inf)

    @cached_property
    def whole(self):
        return self.unit in WHOLE_UNITS

    def rule(self):
        """The range in words; the page shows the same words."""
        kind = "a whole number" if self.whole else "a number"
        low = f"{'above' if self.above else 'of at least'} {show(self.least)}"
        high = "" if self.most in (EXACT_LIMIT, math.inf) else f" and at most {show(self.most)}"
        return f"{self.name} must be {kind} {low}{high}."

    def check(self, value):
        """The value as int (whole) or float, or InvalidQuantity."""
        try:
            number = operator.index(value)
        except TypeError:
            number = value
        if isinstance(value, bool) and (self.least, self.most) != (0, 1):  # True is no count
            raise self._refusal(value)
        if isinstance(number, int) and not self.whole and abs(number) > 10**308:
            raise self._refusal(number, "no float holds that number.")
        if isinstance(number, float) and self.whole and number.is_integer():
            number = int(number)  # 300e9 tokens
        fits = isinstance(number, int) or (
            isinstance(number, float) and math.isfinite(number) and not self.whole
        )
        if not fits or number < self.least or (self.above and number == self.least):
            raise self._refusal(value)
        if number > self.most:
            whole = self.most == EXACT_LIMIT
            raise TooLarge(self.name, number) if whole else self._refusal(value)
        return number if self.whole else float(number)

    def _refusal(self, value, why=""):
        said = f"{self.name} = {show(value)}: {why or self.rule()}"
        return InvalidQuantity(self.name, value, said)


@dataclass(frozen=True)
class Rule:
    """A relation between quantities. `message` names them in braces; `marks` is the one whose
    control is marked. The rule is for whoever asks for what follows from `concerns`. `assumed` has
    values for quantities without which the rule holds all the same."""

    function: Callable
    marks: str
    concerns: str
    assumed: tuple  # pairs (quantity, value)
    message: str

    @cached_property
    def needs(self):
        said = re.findall(r"{(\w+)}", self.message)
        names = (*needs_of(self.function), *said, self.concerns)
        return tuple(dict.fromkeys(filter(None, names)))

    @cached_property
    def _needs_to_be_known(self):
        return [name for name in self.needs if name not in dict(self.assumed)]

    def applies(self, known):
        return all(map(known.__contains__, self._needs_to_be_known))

    def check(self, values):
        assumed = {name: value for name, value in self.assumed if name not in values}
        values = {**values, **assumed} if assumed else values  # of hundreds, hundreds of times
        if not self.function(Values(values)):
            said = self.message.format(**{name: show(values[name]) for name in self.needs})
            raise InvalidQuantity(self.marks, values[self.marks], said)


@dataclass(frozen=True, kw_only=True)
class Formula(Quantity):
    """A registered function with what the page says about it. Call it with keywords; it resolves
    what it needs. A reader may give its value instead, within the range of a quantity."""

    function: Callable
    source: str
    measured_by: str
    group: str
    registry: "Registry" = field(repr=False, compare=False)
    least: float = 0
    choice: bool = False  # a default: given beside its inputs, it contradicts nothing

    @cached_property
    def needs(self):
        return needs_of(self.function)

    def __call__(self, **given):
        return self.registry.evaluate([self.name], **given)[self.name]

    def compute(self, values):
        """The value from already resolved arguments: an exact int for a whole unit, else a
        float."""
        try:
            value = self.function(Values(values))
            value = value if self.whole else float(value)
        except DividendTooLarge as error:
            raise TooLarge(self.name, error.args[0]) from None
        except (ZeroDivisionError, OverflowError):
            value = math.inf
        if not self.whole and not math.isfinite(value):
            said = "has no finite value: a rate is too close to 0, or a factor too large."
            raise InvalidQuantity(self.name, value, f"{self.name} {said}")
        if not self.whole:
            return value
        if not isinstance(value, int):
            raise TypeError(
                f"formula {self.name}: {value!r} is not a whole number, but {self.unit} are"
                " counted; use ceil_div or floor_div."
            )
        if value > EXACT_LIMIT:
            raise TooLarge(self.name, value)
        return value


_RULE = re.compile(r"- `(.+?)` (\w+)(?: for (\w+))?((?:, \w+=\d+)*): (.+)")
_PAIR = re.compile(r"(\w+)=(\d+)")


def group_of(module):
    """The name under which a formula sheet prints a module's formulas: the topic's where its
    formulas are one module, else the module's."""
    package, _, name = module.rpartition(".")
    return package.rpartition(".")[2] if name == "formulas" else name


class Registry:
    """Quantities, formulas and rules by name."""

    def __init__(self):
        self.quantities: dict[str, Quantity] = {}
        self.formulas: dict[str, Formula] = {}
        self.rules: list[Rule] = []
        self._rules_about: dict[str, list[Rule]] = {}
        self._resolved: dict[tuple, tuple] = {}  # what `resolve` found; a new name empties it
        self.presets: Mapping[str, Mapping] = {}  # kind -> name -> preset, for model="GPT-2 124M"

    def quantity(self, name, symbol, unit, meaning, **limits):
        """Declare something the reader gives."""
        self._new(name)
        self.quantities[name] = Quantity(name, symbol, unit, meaning, **limits)

    def given(self, table):
        """Declare what the reader gives, a line for each: name | symbol | unit, range | meaning,
        below headings or none. An indented line goes on with the meaning. The range is `from 0`,
        `above 0`, `to 1` or two of them; without one it is whole numbers from 1, or any number from
        1 for other units. `usually 1` after the range is what is assumed where nobody gives it.

        A line `- ` is a rule: the comparison that has to hold, the quantity whose control is
        marked, and the sentence, with values in braces.

            - `zero_stage < 3` zero_stage for shard_bytes, kernels=0: zero_stage = {zero_stage}: ...

        This one is for whoever asks for what follows from `shard_bytes`; it holds all the same
        where nobody gives `kernels`, which is then 0."""
        table = re.sub(r"\n +", " ", table)
        for line in re.findall(r"(?m)^[^#\n-].*", table):
            name, symbol, unit, meaning = line.split(" | ")
            unit, _, words = unit.partition(", ")
            limits = re.fullmatch(
                r"(?:(from|above) (\S+?))? ?(?:to (\S+?))?(?:(?:, |^)usually (\S+))?", words
            )
            if not limits:
                raise ValueError(f"{name}: `{words}` is no range such as `from 0 to 1`.")
            kind, least, most, usual = limits.groups()
            self.quantity(
                name,
                symbol,
                unit,
                meaning,
                least=int(least or 1),
                most=int(most) if most else None,
                above=kind == "above",
                usual=None if usual is None else int(usual),
            )
        for line in re.findall(r"(?m)^- .*", table):
            condition, marks, concerns, pairs, message = _RULE.fullmatch(line).groups("")
            assumed = tuple((name, int(value)) for name, value in _PAIR.findall(pairs))
            rule = Rule(formula_of(condition), marks, concerns, assumed, message)
            self.rules.append(rule)
            for need in rule.needs:
                self._rules_about.setdefault(need, []).append(rule)

    def given_beside(self, module):
        """Declare the table and the rules in Markdown beside a module of formulas, which have the
        module's name. `module` is its __file__."""
        self.given(Path(module).with_suffix(".md").read_text("utf-8"))

    def section(self, *, source, measured_by):
        """The base of a class whose functions are formulas that share these. A docstring begins as
        a line of `given` does; `own` has what a formula says otherwise.

        class Parts(BOOK.section(source="...", measured_by="tests/...")):
            def layer_parameters(q):
                r'''\\Psi_\\ell | parameters | parameters of one layer'''
                return ...
        """
        define, shared = self._define, dict(source=source, measured_by=measured_by)

        class Section:
            def __init_subclass__(cls):
                for function in filter(inspect.isfunction, list(vars(cls).values())):
                    setattr(cls, function.__name__, define(function, shared))

        return Section

    @staticmethod
    def own(**facts):
        """Facts of the formula below, instead of its section's: source, measured_by, least, or
        choice, which says that it is a default that a reader may replace beside its inputs."""

        def note(function):
            function.own = facts
            return function

        return note

    def _define(self, function, shared):
        check_subset(function)
        said = " ".join((function.__doc__ or "").split()).split(" | ", 2)
        facts = dict(zip(("symbol", "unit", "meaning"), said)) | shared
        return self.add(function.__name__, function, **facts | getattr(function, "own", {}))

    def add(self, name, function, **facts):
        """Register a function that was made, not written: places.py makes sums and maxima."""
        self._new(name)
        group = group_of(function.__module__)
        shared = dict(function=function, group=group, registry=self)
        self.formulas[name] = Formula(name=name, **shared, **facts)
        return self.formulas[name]

    def _new(self, name):
        if name in self.formulas or name in self.quantities:
            raise ValueError(f"{name} is defined twice.")
        self._resolved.clear()

    def find(self, name, needed_by=""):
        """The formula or quantity of that name, which a formula may need."""
        found = self.formulas.get(name) or self.quantities.get(name)
        if found is None:
            raise UnknownName(self, name, needed_by)
        return found

    def resolve(self, targets, given=()):
        """(formulas, inputs): the names that the targets need, dependencies first. A given name
        takes the place of its formula."""
        asked = tuple(targets), frozenset(given)
        if asked not in self._resolved:
            self._resolved[asked] = self._resolve(*asked)
        return tuple(map(list, self._resolved[asked]))

    def _resolve(self, targets, given):
        formulas, inputs, path = {}, {}, []  # the first two: ordered sets of names

        def visit(name):
            if name in formulas or name in inputs:
                return
            if name in given or name in self.quantities:
                inputs[name] = None
                return
            if name in path:
                raise ValueError(
                    f"{' -> '.join([*path, name])}: these formulas need each other in a circle."
                )
            found = self.find(name, path[-1] if path else "")
            path.append(name)
            for need in found.needs:
                visit(need)
            path.pop()
            formulas[name] = None

        for target in targets:
            self.find(target)
            visit(target)
        return formulas, inputs

    def applicable_rules(self, known):
        """The rules all of whose quantities are known."""
        return [rule for rule in self.rules if rule.applies(known)]

    def validate(self, **given):
        """Check every given value and every relation between them; return them as ints and
        floats."""
        values = {name: self.find(name).check(value) for name, value in given.items()}
        for rule in self.applicable_rules(values):
            rule.check(values)
        return values

    def _refuse_contradiction(self, name, values, used):
        """A count that is given instead of computed must be what its formula makes it, where the
        formula's own inputs are used beside it: else the result would be of two different things.
        0 leaves something out, and rates are what is asked about: both may be given.
        """
        formula = self.formulas[name]
        if not formula.whole or formula.choice or values[name] == 0:
            return
        others = {other: value for other, value in values.items() if other != name}
        formulas, inputs = self.resolve([name], others)
        others |= self.assumed(inputs, others)
        if not set(inputs) <= set(others) or not set(inputs) & set(used):
            return
        found = dict(others)
        for formula in formulas:
            found[formula] = self.formulas[formula].compute(found)
        if not math.isclose(found[name], values[name], rel_tol=1e-9):
            said = f"{name} = {show(values[name])} contradicts {', '.join(inputs)}, which make it"
            said += f" {show(found[name])}: leave one of them out."
            raise InvalidQuantity(name, values[name], said)

    def expand(self, given):
        """The quantities of presets that are given by name, as in model="GPT-2 124M", and above
        them what is given by itself."""
        merged = {}
        for kind in self.presets:
            name = given.get(kind)
            if name is None:
                continue
            if name not in self.presets[kind]:
                raise UnknownPreset(kind, name, self.presets[kind])
            merged.update(self.presets[kind][name].quantities)
        return {**merged, **{name: v for name, v in given.items() if name not in self.presets}}

    def assumed(self, inputs, known):
        """The values assumed for inputs that nobody gave: name -> usual value."""
        usual = {
            name: self.quantities[name].usual
            for name in inputs
            if name in self.quantities and name not in known
        }
        return {name: value for name, value in usual.items() if value is not None}

    def evaluate(self, targets, *, allow_unused=False, **given):
        """Values of the target names, as a dict. A preset is given by its kind:
        model="GPT-2 124M". Raises InvalidQuantity for a value that cannot be, UnknownName for a
        name that does not exist, MissingQuantity for one that is needed, and, unless
        `allow_unused`, UnusedQuantity for one on which no target depends."""
        values = self.solve(targets, given, allow_unused)
        return {target: values[target] for target in targets}

    def solve(self, targets, given, allow_unused=False):
        """The values of all that the targets depend on, otherwise as evaluate()."""
        flat = self.expand(given)
        values = self.validate(**flat)
        formulas, inputs = self.resolve(targets, flat)
        if not allow_unused:
            refuse_unused(self, targets, flat, formulas, inputs)
        for name in inputs:
            if name in self.formulas:
                self._refuse_contradiction(name, values, inputs)
        checked = {rule.message for rule in self.applicable_rules(values)}

        def check(rules):
            for rule in rules:
                if rule.message not in checked and rule.applies(values):
                    rule.check(values)
                    checked.add(rule.message)

        values.update(self.assumed(inputs, values))
        missing = [name for name in inputs if name not in values]
        if missing:
            raise MissingQuantity(self, targets, missing)
        check(self.rules)  # some are about what was assumed, too
        for name in formulas:
            formula = self.formulas[name]
            values[name] = formula.compute(values)
            if formula.whole and values[name] < 0:
                instead = [other for other in inputs if other in self.formulas] or inputs
                said = f"{name} = {show(values[name])}: what is given contradicts itself;"
                said += f" leave out {', '.join(instead)}."
                raise InvalidQuantity(name, values[name], said)
            check(self._rules_about.get(name, ()))
        return values


def show(value):
    """A value in a sentence: whole numbers with thousands separators. The page's JavaScript writes
    the same."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) <= EXACT_LIMIT else f"{Decimal(value):.2e}"
    if isinstance(value, float) and value.is_integer():
        return show(int(value))  # the page has one kind of number
    return str(value) or "nothing"  # the text of an empty box


# the book's formulas; topics fill it when the package is imported, constant after
BOOK = Registry()
BOOK.given_beside(Path(__file__).with_name("given"))  # quantities of more than one chapter
