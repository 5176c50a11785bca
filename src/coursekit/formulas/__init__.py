"""Every memory, time and communication formula of the book, once. See registry.py for how they are
resolved, render.py for how they are printed.

    from coursekit.formulas import states_bytes, quantities
    states_bytes(**quantities(model="GPT-2 124M", recipe="fp32 Adam"))      # 1991036928, exact
"""

from types import ModuleType

from coursekit import topics

from .asking import MissingQuantity, UnknownName, UnknownPreset, UnusedQuantity, close_names
from .explain import explain
from .presets import GPUS, KERNELS, LINKS, MODELS, OPERATIONS, PRESETS, RECIPES, Preset, quantities
from .registry import BOOK, Formula, InvalidQuantity, Quantity, Registry, Rule, TooLarge
from .subset import (
    EXACT_LIMIT,
    ceil_div,
    ceil_log2,
    equal,
    floor_div,
    maximum,
    minimum,
    power_of_two,
    square_root,
    where,
)

topics.modules("formulas")  # each fills the registry
evaluate, validate = BOOK.evaluate, BOOK.validate


def __getattr__(name):
    """Every registered formula is an attribute of the package: `from coursekit.formulas import
    states_bytes`."""
    if name in BOOK.formulas:
        return BOOK.formulas[name]
    # whoever looks at a module asks for __file__ and the like: nobody meant a formula
    close = "" if name.startswith("__") else close_names(name, __dir__())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{close}")


def __dir__():
    modules = {name for name, value in globals().items() if isinstance(value, ModuleType)}
    return sorted({*BOOK.formulas, *globals()} - modules)
