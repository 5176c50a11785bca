"""Formulas of the book, asked for by name."""

from coursekit.formulas import BOOK, quantities


class Given:
    """Each formula is an attribute, computed when a test asks for it: `Given(ranks=4).ring_steps`.
    Quantities that it does not need are let be."""

    def __init__(self, **given):
        self._given = given

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        vars(self).update(BOOK.solve([name], self._given, allow_unused=True))
        return vars(self)[name]


def value(name: str, **given):
    return getattr(Given(**given), name)


def of_model(config, microbatch: int, sequence: int, recipe="fp32 Adam", **given) -> dict:
    """The quantities of a model's step."""
    built = dict(dropout=config.dropout, fused_attention=int(config.fused_attention))
    batch = dict(microbatch=microbatch, sequence=sequence)
    return quantities(recipe=recipe, **config.quantities(), **built, **batch, **given)
