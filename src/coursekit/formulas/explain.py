"""The tree of formulas below a number, with numbers, units and sources.

    explain("states_bytes", model="GPT-2 124M", recipe="fp32 Adam")

prints the tree and returns the values that were asked for; `python -m shardlab explain` prints it.
"""

from .registry import BOOK, Formula, Registry, show
from .subset import expression_of

DECIMAL_UNITS = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"))


def explain(names, *, allow_unused=False, registry: Registry = BOOK, **given):
    """Print what the quantities follow from, as a tree with numbers, units and sources and, at its
    end, what was assumed; return the values of `names`. Takes what evaluate() takes: presets by
    their kind, as in model="GPT-2 124M", and quantities by name."""
    asked = (names,) if isinstance(names, str) else tuple(names)
    if not asked:
        raise TypeError("explain() without a name: say which quantity, such as 'states_bytes'.")
    values = registry.solve(asked, given, allow_unused)
    flat, texts, done = registry.expand(given), [], set()
    origins, sources = dict.fromkeys(flat, "given"), []
    for kind, presets in registry.presets.items():
        if (name := given.get(kind)) is not None:
            sources.append(f"  {kind} {name}: {presets[name].source}")
            held = set(presets[name].quantities) - set(given)
            origins.update(dict.fromkeys(held, f"{kind} {name}"))

    def visit(name, indent):
        found = registry.find(name)
        number = f"{indent}{name} = {amount(values[name], found.unit)}"
        meaning = " ".join(found.meaning.split())
        if name in done:
            texts.append(f"{number}, as above")
            return
        done.add(name)
        if not isinstance(found, Formula) or name in flat:
            texts.append(f"{number} ({origins.get(name, 'assumed')}): {meaning}")
            return
        source = f"source: {found.source}; measured by {found.measured_by}"
        texts.extend([f"{number}: {meaning}", f"{indent}    = {expression_of(found.function)}"])
        texts.append(f"{indent}    {source}")
        for need in found.needs:
            visit(need, f"{indent}  ")

    for name in asked:
        visit(name, "")
    texts += ["", "Presets:", *sources] if sources else []
    if assumed := registry.assumed(registry.resolve(asked, flat)[1], flat):
        texts += ["", "Assumed, because nobody gave it:"]
        texts += [f"  {name} = {show(value)}" for name, value in assumed.items()]
    print("\n".join(texts))
    return {name: values[name] for name in asked}


def amount(value, unit) -> str:
    """A number with its unit; large bytes once more in GB."""
    number = f"{value:,.6g}" if isinstance(value, float) else show(value)
    unit = "" if unit in ("count", "fraction") else f" {unit}"
    if unit == " bytes" and value >= 10**6:
        size, name = next(pair for pair in DECIMAL_UNITS if value >= pair[0])
        return f"{number} bytes ({value / size:.3g} {name})"
    return number + unit


def run_explain(asked) -> int:
    names = [word for word in asked.names if "=" not in word]
    try:
        explain(names, **given_pairs(word for word in asked.names if "=" in word))
    except TypeError as refused:
        raise ValueError(refused) from None
    return 0


def given_pairs(words) -> dict:
    """The names and values of NAME=VALUE. Raises TypeError for a word without a name, or a name
    given twice."""
    given = {}
    for name, value in map(pair, words):
        if not name:
            raise TypeError(f"={value}: there is no name before the equals sign.")
        if name in given:
            raise TypeError(f"{name} is given twice: {given[name]} and {value}.")
        given[name] = value
    return given


def pair(word: str):
    """(name, value) of NAME=VALUE: a number where it is one."""
    name, _, text = word.partition("=")
    for number in (int, float):
        try:
            return name, number(text)
        except ValueError:
            pass
    return name, text
