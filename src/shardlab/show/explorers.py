"""The explorers as data: which quantities can be moved, what is drawn, what is said. The page draws them as SVG
(bookkit/explorer.py), labs as ipywidgets; neither holds a formula or a number of its own.

    explorer = EXPLORERS["does-it-fit"]
    values = explorer.start()                                # every input, from the presets it starts with
    values = explorer.move(values, "gpus_per_copy", 2)       # with what follows from it
    explorer.say(explorer.compute(values))                   # "Each of the 2 GPUs holds 53.9 GB (50.2 GiB) of model states; ..."
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from shardlab.formulas import BOOK, GPUS, MODELS, RECIPES, InvalidQuantity, evaluate

from .format import STYLE_OF_UNIT, format_as

PRESETS = MappingProxyType({"model": MODELS, "recipe": RECIPES, "gpu": GPUS})


# --- what an explorer is made of ---------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Control:
    """A slider over `stops`, with a box beside it that takes any value. `style` is one of format.STYLES."""
    quantity: str
    label: str
    stops: Sequence  # ascending
    style: str = "exact"


@dataclass(frozen=True)
class Menu:
    """Presets of one kind ("model", "recipe" or "gpu") to choose from; one choice sets several quantities."""
    kind: str
    label: str

    @property
    def names(self):
        return tuple(PRESETS[self.kind])


@dataclass(frozen=True)
class Ratio:
    """`follower` keeps the ratio to `leader` that the chosen preset has, rounded to a whole number of at least 1."""
    follower: str
    leader: str

    def move(self, values, changed, preset):
        if changed != self.leader or self.follower not in preset or not _whole(values[self.leader]):
            return {}
        ours, theirs = preset[self.follower], preset[self.leader]
        return {self.follower: max(1, (2 * values[self.leader] * ours + theirs) // (2 * theirs))}


@dataclass(frozen=True)
class Product:
    """`product` = `first` x `second`. When the product or `second` moves, `first` follows where it divides; when `first`
    moves, the product follows. Where it does not divide nothing follows, and the registry's rule speaks."""
    product: str
    first: str
    second: str

    def move(self, values, changed, preset):
        product, first, second = (values[name] for name in (self.product, self.first, self.second))
        if changed == self.first and _whole(first, second):
            return {self.product: first * second}
        if changed in (self.product, self.second) and _whole(product, second) and product % second == 0:
            return {self.first: product // second}
        return {}


@dataclass(frozen=True)
class Part:
    """One piece of a bar: its quantity, the label beside it, and its colour's name in palette.MEMORY."""
    quantity: str
    label: str
    colour: str


@dataclass(frozen=True)
class MemoryBar:
    """One GPU's memory: the parts end to end from zero, the card's capacity as a line; `spare` is outlined, `over` hatched."""
    title: str
    parts: tuple
    total: str
    capacity: str
    spare: str
    over: str
    kind: str = field(default="memory", init=False)

    @property
    def quantities(self):
        return (*(part.quantity for part in self.parts), self.total, self.capacity, self.spare, self.over)


@dataclass(frozen=True)
class TimeAxis:
    """A logarithmic axis of time with one marker."""
    title: str
    quantity: str  # in seconds
    ticks: tuple = (("hour", 3600), ("day", 86_400), ("month", 2_628_000), ("year", 31_536_000), ("century", 3_153_600_000),
                    ("10,000 years", 315_360_000_000))
    least: float = 60
    most: float = 3e12
    kind: str = field(default="time", init=False)

    @property
    def quantities(self):
        return (self.quantity,)


@dataclass(frozen=True)
class Say:
    """A piece of the sentence, with {quantity:style}. It is said when all of `when` holds and none of `unless`, which are pairs
    (quantity, value)."""
    text: str
    when: tuple = ()
    unless: tuple = ()

    @property
    def quantities(self):
        return (*PLACE.findall(self.text), *(name for name, _ in (*self.when, *self.unless)))

    def said(self, values):
        holds = [values[name] == value for name, value in self.when] + [values[name] != value for name, value in self.unless]
        if not all(holds):
            return ""
        return PLACEHOLDER.sub(lambda match: format_as(values[match[1]], match[2] or default_style(match[1])), self.text)


PLACEHOLDER = re.compile(r"\{(\w+)(?::([^}]+))?\}")
PLACE = re.compile(r"\{(\w+)")


@dataclass(frozen=True)
class Table:
    """What stands in the picture's place in print and without JavaScript: one row for each preset of a kind, the rest as at the
    start. Columns are (head, quantity, style)."""
    caption: str
    kind: str
    columns: tuple


def default_style(name):
    """How a quantity is printed when nobody says how. Bytes are GB here, since they are held against a card's GB."""
    return {**STYLE_OF_UNIT, "bytes": "decimal bytes"}.get(BOOK.find(name).unit, "count")


def _without_unit(text, head):
    """The number alone where the head of the column names the unit."""
    number, _, unit = text.rpartition(" ")
    return number if number and head.endswith(f", {unit}") else text


def _whole(*values):
    return all(isinstance(value, (int, float)) and value >= 1 and value == value // 1 and value < 2**53 for value in values)


@dataclass(frozen=True)
class Explorer:
    """One explorer. `begin` holds the presets (by kind) and the values (by quantity) it starts with; `outputs` are the quantities
    that "copy as Python" asks for."""
    name: str
    title: str
    menus: tuple
    controls: tuple
    links: tuple
    begin: MappingProxyType
    pictures: tuple
    sentence: tuple
    detail: tuple
    table: Table
    outputs: tuple

    @cached_property
    def targets(self):
        """Every quantity that is shown somewhere, once."""
        shown = [name for part in (*self.pictures, *self.sentence, *self.detail) for name in part.quantities]
        shown += [column[1] for column in self.table.columns]
        return list(dict.fromkeys([*self.outputs, *shown]))

    @cached_property
    def inputs(self):
        """The quantities that have to be given, those with a control first."""
        moved = [control.quantity for control in self.controls]
        return list(dict.fromkeys([*moved, *BOOK.resolve(self.targets, moved)[1]]))

    @cached_property
    def formulas(self):
        """Every formula behind the targets, in the order in which one needs the other."""
        return BOOK.resolve(self.targets, self.inputs)[0]

    def preset(self, kind, name):
        """What a choice in a menu sets: those of the preset's quantities that are inputs, and inputs that follow from it alone
        (a model sets `parameters` where that is an input)."""
        given = PRESETS[kind][name].quantities
        follows = [name for name in self.inputs
                   if name in BOOK.formulas and name not in given and set(BOOK.resolve([name])[1]) <= set(given)]
        return {**{name: given[name] for name in self.inputs if name in given}, **(evaluate(follows, **given) if follows else {})}

    def chosen_at_start(self):
        """The preset of each menu: kind -> name."""
        return {menu.kind: self.begin[menu.kind] for menu in self.menus}

    def start(self):
        """Every input, as the explorer begins."""
        values = {}
        for kind, name in self.chosen_at_start().items():
            values.update(self.preset(kind, name))
        values.update({name: value for name, value in self.begin.items() if name not in PRESETS})
        return {name: values[name] for name in self.inputs}

    def choose(self, values, kind, name):
        """The inputs after a choice in a menu."""
        return {**values, **self.preset(kind, name)}

    def move(self, values, quantity, value, chosen=None):
        """The inputs after one of them moved, with what is linked to it. `chosen` has the last choice of each menu."""
        preset = {}
        for kind, name in {**self.chosen_at_start(), **(chosen or {})}.items():
            preset.update(self.preset(kind, name))
        values = {**values, quantity: value}
        for link in self.links:
            values.update(link.move(values, quantity, preset))
        return values

    def compute(self, values):
        """Every input and every quantity computed from them; raises InvalidQuantity with the sentence to show."""
        return evaluate([*self.inputs, *self.formulas], **{name: values[name] for name in self.inputs})

    def say(self, computed):
        """The sentence for what compute() returned: the picture in words."""
        return "".join(piece.said(computed) for piece in self.sentence)

    def say_detail(self, computed):
        """The rest of the picture in words."""
        return "".join(piece.said(computed) for piece in self.detail)

    def marks(self, quantity, changed=None):
        """The control to mark when `quantity` is refused: its own, that of the quantity it follows, or the one that moved."""
        controls = [control.quantity for control in self.controls]
        leaders = [link.leader for link in self.links if isinstance(link, Ratio) and link.follower == quantity]
        return next((name for name in (quantity, *leaders, changed) if name in controls), controls[0])

    def call(self, values, chosen=None):
        """Python that computes the outputs: the presets last chosen, and by name every value that they do not give."""
        chosen = {**self.chosen_at_start(), **(chosen or {})}
        given = {}
        for kind, name in chosen.items():
            given.update(self.preset(kind, name))
        presets = ", ".join(f'{kind}="{name}"' for kind, name in chosen.items())
        own = ", ".join(f"{name}={values[name]:_}" for name in self.inputs if given.get(name) != values[name])
        outputs = ", ".join(f'"{name}"' for name in self.outputs)
        return ("from shardlab.formulas import evaluate, quantities\n\n"
                f"evaluate([{outputs}],\n         **quantities({presets}{',' + chr(10) + ' ' * 22 + own if own else ''}))")

    def rows(self):
        """The table's rows: (preset's name, texts of the columns). A preset that is refused shows the reason in one cell."""
        start = self.start()
        for name in PRESETS[self.table.kind]:
            try:
                computed = self.compute(self.choose(start, self.table.kind, name))
                yield name, [_without_unit(format_as(computed[quantity], style), head)
                             for head, quantity, style in self.table.columns]
            except InvalidQuantity as refused:
                yield name, [str(refused)]


# --- stops ---------------------------------------------------------------------------------------------------------------

def powers_of_two(least, most):
    """least, 2 least, 4 least ... up to most."""
    return tuple(least << k for k in range((most // least).bit_length()))


def steps_of_ten(least, most, steps=(1, 1.5, 2, 3, 5, 7)):
    """1, 1.5, 2, 3, 5, 7, 10 ... between two powers of ten, as whole numbers."""
    return tuple(int(step * 10**k) for k in range(least, most) for step in steps) + (10**most,)


# --- the explorers of the book ---------------------------------------------------------------------------------------------

STATES_OF_ONE_GPU = MemoryBar(
    title="Model states on one GPU",
    parts=(Part("parameter_bytes_per_gpu", "parameters", "parameters"), Part("gradient_bytes_per_gpu", "gradients", "gradients"),
           Part("master_bytes_per_gpu", "optimizer: master copy", "optimizer"),
           Part("moment_bytes_per_gpu", "optimizer: moments", "optimizer")),
    total="states_bytes_per_gpu", capacity="gpu_memory_bytes", spare="spare_bytes", over="overflow_bytes")

STATES_IN_WORDS = (
    Say("One GPU holds ", when=(("gpus_per_copy", 1),)),
    Say("Each of the {gpus_per_copy:exact} GPUs that share a copy holds ", unless=(("gpus_per_copy", 1),)),
    Say("{states_bytes_per_gpu} ({states_bytes_per_gpu:bytes}) of model states"),
    Say("; a card of {gpu_memory_bytes} is {overflow_bytes} short. "
        "Share each copy between at least {gpus_to_hold_states:exact} GPUs.", when=(("states_fit", 0),)),
    Say("; a card of {gpu_memory_bytes} has {spare_bytes} left for activations, temporaries and buffers.",
        when=(("states_fit", 1),)))

PARTS_IN_WORDS = (
    Say("Parameters {parameter_bytes_per_gpu}, gradients {gradient_bytes_per_gpu}"),
    Say(", the optimizer's master copy {master_bytes_per_gpu}", unless=(("master_bytes_per_gpu", 0),)),
    Say(", the optimizer's moments {moment_bytes_per_gpu}", unless=(("moment_bytes_per_gpu", 0),)), Say("."))

DOES_IT_FIT = Explorer(
    name="does-it-fit",
    title="Does it fit?",
    menus=(Menu("model", "Model"), Menu("recipe", "Recipe"), Menu("gpu", "GPU")),
    controls=(
        Control("layers", "layers", range(1, 129)),
        Control("hidden", "hidden size", (256, 512, 768, 1024, 1280, 1536, 1600, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192,
                                          10_240, 12_288, 14_336, 16_384, 20_480)),
        Control("heads", "attention heads", (1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 48, 64, 80, 96, 128)),
        Control("gpus_per_copy", "GPUs that share one copy", powers_of_two(1, 1024))),
    links=(Ratio("feed_forward", "hidden"), Ratio("key_value_heads", "heads")),
    begin=MappingProxyType(dict(model="Llama 7B", recipe="bf16 + fp32 master", gpu="A100 SXM 80GB", gpus_per_copy=1)),
    pictures=(STATES_OF_ONE_GPU,),
    sentence=STATES_IN_WORDS,
    detail=(Say("{parameters} parameters: {layers:exact} layer{layers:s} of hidden size {hidden:exact}, each with {heads:exact} "
                "head{heads:s} of {head_size:exact} columns. "), *PARTS_IN_WORDS),
    table=Table("Model states with a bf16 model and an fp32 master copy, against one A100 of 80 GB", "model", (
        ("parameters", "parameters", "count"), ("model states, GB", "states_bytes_per_gpu", "GB"),
        ("fit one GPU?", "states_fit", "yes or no"), ("fewest GPUs", "gpus_to_hold_states", "exact"))),
    outputs=("parameters", "states_bytes_per_gpu", "states_fit", "gpus_to_hold_states"))

FITS_AND_HOW_LONG = Explorer(
    name="fits-and-how-long",
    title="Does it fit, and how long will it take?",
    menus=(Menu("model", "Model"), Menu("recipe", "Recipe"), Menu("gpu", "GPU")),
    controls=(
        Control("parameters", "parameters", steps_of_ten(6, 13), "count"),
        Control("tokens", "tokens", steps_of_ten(9, 14), "count"),
        Control("gpus", "GPUs", powers_of_two(1, 65_536)),
        Control("data_parallel", "copies of the model", powers_of_two(1, 65_536)),
        Control("gpus_per_copy", "GPUs that share one copy", powers_of_two(1, 65_536)),
        Control("utilisation", "utilisation", tuple(k / 100 for k in range(1, 101)), "percent")),
    links=(Product("gpus", "data_parallel", "gpus_per_copy"),),
    begin=MappingProxyType(dict(model="GPT-3 175B", recipe="bf16 + fp32 master", gpu="A100 SXM 80GB", tokens=300_000_000_000,
                                gpus=1024, data_parallel=128, gpus_per_copy=8, utilisation=0.4)),
    pictures=(STATES_OF_ONE_GPU, TimeAxis("Training time", "training_seconds")),
    sentence=(*STATES_IN_WORDS, Say(" Training takes {training_seconds}.", when=(("states_fit", 1),)),
              Say(" If it fitted, training would take {training_seconds}.", when=(("states_fit", 0),))),
    detail=(Say("{training_flops} operations for {parameters} parameters and {tokens} tokens, on {gpus:exact} GPU{gpus:s} at "
                "{utilisation} of {flops_per_second}. "), *PARTS_IN_WORDS),
    table=Table("GPT-3 on 300 billion tokens, 1,024 GPUs at 40% of their datasheet, 8 GPUs to a copy", "gpu", (
        ("memory, GB", "gpu_memory_bytes", "GB"), ("states on each, GB", "states_bytes_per_gpu", "GB"),
        ("fit?", "states_fit", "yes or no"), ("fewest GPUs to a copy", "gpus_to_hold_states", "exact"),
        ("training time", "training_seconds", "duration"))),
    outputs=("states_bytes_per_gpu", "states_fit", "gpus_to_hold_states", "training_days"))

EXPLORERS = MappingProxyType({explorer.name: explorer for explorer in (DOES_IT_FIT, FITS_AND_HOW_LONG)})
