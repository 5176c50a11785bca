"""The sentences of a formula for whoever asks: its help, what is missing, what it does not use, and
which name was meant. One sentence each, with the rule; a list where several quantities are missing.
"""

import difflib
import inspect


class UnknownName(TypeError):
    """No quantity and no formula has that name, for which somebody asks, or which a formula
    needs."""

    def __init__(self, registry, name, needed_by=""):
        close = close_names(name, [*registry.formulas, *registry.quantities])
        wrong = f"formula {needed_by} needs q.{name}, but " if needed_by else ""
        super().__init__(f"{wrong}no quantity or formula is named {name}{close or '.'}")


class UnknownPreset(TypeError):
    """No preset of that kind has that name."""

    def __init__(self, kind, name, presets):
        close = close_names(str(name), presets)
        super().__init__(
            f"no {kind} is named {name!r}{close and close[:-1]}; there are {', '.join(presets)}."
        )


class MissingQuantity(TypeError):
    """Quantities that the targets need and nobody gave, each with its meaning and range. `names`
    lists it."""

    def __init__(self, registry, targets, names):
        self.names = names
        lines = [f"{', '.join(targets)}: needed but not given: {', '.join(names)}."]
        lines += [f"  {described(registry.find(name))}" for name in names]
        for kind, presets in registry.presets.items():
            example = next(iter(presets.values()))
            if set(example.quantities) & set(names):
                lines.append(f"  A preset gives all of a {kind}, such as {kind}={example.name!r}.")
        super().__init__("\n".join(lines))


class UnusedQuantity(TypeError):
    """Quantities that are given and change nothing. `names` lists it."""

    def __init__(self, targets, names, instead):
        self.names = names
        verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
        because = f", because {' and '.join(instead)} is given" if instead else ""
        super().__init__(
            f"{', '.join(names)} {verb} given, but {', '.join(targets)} does not depend on"
            f" {them}{because}: leave {them} out, ask for a quantity that depends on {them}, or say"
            " allow_unused=True."
        )


def refuse_unused(registry, targets, given, formulas, inputs):
    """Raise UnusedQuantity for given names on which no target depends. A preset that is given whole
    describes a model or a machine, of which a target may use a part or nothing; but not beside a
    value that is given instead of what follows from it. A quantity that a rule compares
    with a used one counts as used."""
    used = {*inputs, *formulas}
    for rule in registry.applicable_rules({*given, *formulas}):
        if used & set(rule.needs):
            used |= set(rule.needs)
    unused = [name for name in given if name not in used]
    if not unused:
        return
    instead = {  # formula that is given -> names that it would follow from
        name: set(registry.resolve([name])[1]) for name in inputs if name in registry.formulas
    }
    overruled = set().union(*instead.values())
    described = set()
    for presets in registry.presets.values():
        names = {name for preset in presets.values() for name in preset.quantities}
        whole = any(set(preset.quantities) <= set(given) for preset in presets.values())
        if names & used or (whole and not names & overruled):
            described |= names
    unused = [name for name in unused if name not in described]
    if unused:
        because = [name for name, names in instead.items() if names & set(unused)]
        raise UnusedQuantity(targets, unused, because)


def close_names(name, names):
    """`; did you mean states_bytes?`, or nothing where no name is close."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]}?" if close else ""


def described(found):
    """A quantity, or a formula that may be given, in one line: name, symbol, meaning, range."""
    limits = found.as_quantity() if hasattr(found, "as_quantity") else found
    usual = getattr(found, "usual", None)
    kind = limits.rule().removeprefix(f"{found.name} must be ")
    text = f"{found.name} ({found.symbol}): {found.meaning}; {kind}"
    return text if usual is None else f"{text} Usually {usual}."


def signature_of(formula):
    """The quantities from which the formula follows, as arguments; those with a usual value have
    it as their default."""
    registry = formula.registry
    _, inputs = registry.resolve([formula.name])
    usual = registry.assumed(inputs, ())
    inputs = sorted(inputs, key=lambda name: name in usual)
    empty, kind = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    defaults = {name: usual.get(name, empty) for name in inputs}
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]
    )


class Described:
    """The docstring of a formula: what it is, from what it follows, its source, its test. The class
    keeps its own."""

    def __init__(self, of_the_class):
        self.of_the_class = of_the_class

    def __get__(self, formula, owner):
        return self.of_the_class if formula is None else _help(formula)


def _help(formula):
    registry = formula.registry
    _, inputs = registry.resolve([formula.name])
    usual = registry.assumed(inputs, ())
    lines = [
        f"{formula.name}{signature_of(formula)}",
        "",
        f"{formula.meaning}",
        "",
        f"Unit: {formula.unit}. Symbol: {formula.symbol}. Source: {formula.source}.",
        f"Measured by {formula.measured_by}.",
        f"Computed from {', '.join(formula.needs)}.",
        "",
        "To be given:",
        *(f"  {described(registry.find(name))}" for name in inputs if name not in usual),
    ]
    if usual:
        lines += ["", "Assumed where it is not given:"]
        lines += [f"  {described(registry.find(name))}" for name in inputs if name in usual]
    given = [kind for kind, names in registry.presets.items() if _gives(names, inputs)]
    if given:
        lines += ["", f"Presets give many of them at once: {', '.join(given)}."]
    return "\n".join(lines)


def _gives(presets, inputs):
    return any(set(preset.quantities) & set(inputs) for preset in presets.values())
