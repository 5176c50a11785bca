"""Beside the cells of lab 1: what is counted and weighed equals the formulas; tables, figures and
where the explorers begin."""

from coursekit.formulas import RECIPES, evaluate
from coursekit.machine.capabilities import find_device, memory_bytes
from coursekit.show.figures import axis, new_figure
from coursekit.show.format import format_as
from coursekit.show.palette import TIMELINE
from coursekit.show.tables import Table
from coursekit.topics.why_one_gpu.exercises import KindsOfStates
from coursekit.topics.why_one_gpu.figures import states_figure
from shardlab.gpt import GPTConfig

_RECIPE = "fp32 Adam"
_KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "step_counter_bytes")


def by_formulas(config: GPTConfig, *names: str) -> dict:
    """Quantities of a model that Adam trains in fp32."""
    return evaluate(list(names), **config.quantities(), **RECIPES[_RECIPE].quantities)


def table_of_parameters(config: GPTConfig, counted: int) -> Table:
    """Parameters by formula and tensor by tensor. Raises AssertionError if the two differ."""
    computed = by_formulas(config, "layer_parameters", "embedding_parameters", "parameters")
    assert counted == computed["parameters"], (counted, computed)
    return Table(["parameters", "number"], [*computed.items(), ("counted", counted)])


def figure_of_formulas(config: GPTConfig):
    """Model states by formula; nothing was run."""
    found = by_formulas(config, *_KINDS[:3])
    return states_figure(found, None, "Model states, by formula")


def figure_of_states(config: GPTConfig, weighed: KindsOfStates):
    return states_figure(by_formulas(config, *_KINDS), dict(zip(_KINDS, weighed)))


def table_of_states(config: GPTConfig, weighed: KindsOfStates) -> Table:
    """Bytes by formula and weighed. Raises AssertionError if a kind differs by a byte."""
    formula = by_formulas(config, *_KINDS)
    predicted = tuple(formula[kind] for kind in _KINDS)
    assert tuple(weighed) == predicted, (weighed, formula)
    return Table(["formula", "predicted", "measured"], [*zip(_KINDS, predicted, weighed)])


def given_to_explorer(config: GPTConfig, weighed: KindsOfStates) -> dict:
    """The lab's model, and what was weighed."""
    measured = {
        "parameter_bytes_per_gpu": weighed.parameters,
        "gradient_bytes_per_gpu": weighed.gradients,
        "master_bytes_per_gpu": 0,  # this recipe has no master copy
        "moment_bytes_per_gpu": weighed.moments,
    }
    begin = dict(model="GPT-2 124M", recipe=_RECIPE, gpu="T4", **config.quantities())
    return dict(measured=measured, **begin)


def flops_of_products(config: GPTConfig, tokens: int) -> int:
    """Operations of every matrix product of a step."""
    name = "matmul_flops_per_token"
    return tokens * evaluate([name], **config.quantities(), sequence=config.max_sequence)[name]


_NAMES = ("6 x parameters x tokens", "every matrix product", "measured")


def figure_of_a_step(*seconds: float):
    """A bar for each way to know them."""
    figure = new_figure("One step, in milliseconds", 210)
    bars = dict(x=[round(1000 * float(one), 2) for one in seconds], y=_NAMES, orientation="h")
    figure.add_bar(**bars, marker_color=TIMELINE["forward"].light)
    figure.update_xaxes(axis(showgrid=True, nticks=6))
    return figure.update_yaxes(axis(autorange="reversed"))


def table_of_a_step(*seconds: float) -> Table:
    """Seconds of a step by the reader, by products and by the clock."""
    rows = [[name, format_as(one, "duration")] for name, one in zip(_NAMES, seconds)]
    rows.append(["utilisation", format_as(seconds[0] / seconds[2], "percent")])
    return Table(["one step", "time"], rows)


def memory_of_this_machine() -> dict:
    """For an explorer, where the system tells."""
    memory = memory_bytes(find_device()[0])
    return dict(gpu_memory_bytes=memory) if memory else {}
