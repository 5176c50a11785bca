"""The sentences of a formula for whoever asks: what is missing, what it does not use, and which
name was meant. One sentence each, with the rule; a list where several quantities are missing.
"""

import difflib


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
        begun = [one for one in presets if one.lower().startswith(str(name).lower())]
        close = begun or difflib.get_close_matches(str(name), list(presets), 1)
        meant = f"; did you mean {' or '.join(close)}" if close else ""
        super().__init__(f"no {kind} is named {name!r}{meant}; there are {', '.join(presets)}.")


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
    """Quantities that are given and change nothing."""

    def __init__(self, targets, names, instead):
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
    kind = found.rule().removeprefix(f"{found.name} must be ")
    return f"{found.name} ({found.symbol}): {found.meaning}; {kind}"
