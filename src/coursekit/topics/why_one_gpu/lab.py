"""Functions of lab 1 beside its own training step: reading, weighing, timing and writing."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from textwrap import fill
from typing import NamedTuple

import torch

from coursekit.exercises.going_on import gives_numbers
from coursekit.formulas import GPUS, RECIPES, evaluate, training_days
from coursekit.machine.capabilities import find_device, memory_bytes
from coursekit.show.figures import Bytes, loss_figure, memory_figure, states_figure
from coursekit.show.format import format_as
from coursekit.show.tables import Table
from coursekit.topics.why_one_gpu.exercises import (
    KindsOfStates,
    states_kind_by_kind,
    training_seconds_from_rate,
)
from shardlab.gpt import GPTConfig
from shardlab.measure.clock import median_seconds, say_if_busy
from shardlab.text import CharTokenizer, load_text, windows_of_text

SIZES = dict(layers=3, hidden=128, heads=4, max_sequence=64)
_BATCH = 8
_RECIPE = "fp32 Adam"
_KINDS = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "moments": "optimizer_bytes",
    "step_counters": "step_counter_bytes",
}
_LINE_LENGTH = 66


@cache
def reader() -> CharTokenizer:
    """The tokenizer of the characters of the book's text."""
    return CharTokenizer(load_text())


@cache
def config() -> GPTConfig:
    """The lab's GPT: its vocabulary are the characters of the text."""
    return GPTConfig(**SIZES, vocabulary=reader().vocabulary)


def tokens_of_text() -> torch.Tensor:
    """The whole text as numbers: [N]."""
    return reader().encode(load_text())


def stream_of_batches(device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets, 8 windows of 64 characters at a time, forever."""
    stream = windows_of_text(_BATCH, config().max_sequence)
    return ((inputs.to(device), targets.to(device)) for inputs, targets in stream)


def print_some_tokens() -> None:
    """The first words, as characters and as numbers."""
    text = load_text()
    start = text.index("Alice was beginning")
    print(f"{len(text):,} characters, {reader().vocabulary} different ones")
    print(text[start : start + 9], reader().encode(text[start : start + 9]).tolist())


# --- bytes ----------------------------------------------------------------------------------------


def by_formulas(names) -> dict:
    """Quantities of the lab's model and recipe."""
    return evaluate(list(names), **config().quantities(), **RECIPES[_RECIPE].quantities)


def table_of_parameters(model: torch.nn.Module) -> Table:
    """A table of parameters, by formula and tensor by tensor. Raises AssertionError if the two
    differ by one."""
    computed = by_formulas(["layer_parameters", "embedding_parameters", "parameters"])
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == computed["parameters"], (counted, computed)
    return Table(["parameters", "number"], [*computed.items(), ("counted", counted)])


def figure_of_formulas():
    """Model states by formula; nothing was run."""
    names = dict(zip(list(_KINDS.values())[:3], ("parameters", "gradients", "optimizer states")))
    found = by_formulas(names)
    colours = ("parameters", "gradients", "optimizer")
    rows = [
        Bytes(words, colour, found[name]) for (name, words), colour in zip(names.items(), colours)
    ]
    return memory_figure("Model states, by formula", rows)


class WeighedStates(NamedTuple):
    """The bytes that a training step keeps, weighed by the reader."""

    kinds: KindsOfStates
    parameters: int

    @property
    def bytes_for_each(self) -> float:
        """The bytes of parameters, gradients and moments, for each parameter."""
        return sum(self.kinds[:3]) / self.parameters

    def in_names_of_formulas(self) -> dict[str, int]:
        return {_KINDS[kind]: nbytes for kind, nbytes in self.kinds._asdict().items()}

    def table(self) -> Table:
        predicted = by_formulas(_KINDS.values())
        rows = [
            [name, predicted[name], nbytes] for name, nbytes in self.in_names_of_formulas().items()
        ]
        return Table(["formula", "predicted", "measured"], rows)

    def figure(self):
        return states_figure(by_formulas(_KINDS.values()), self.in_names_of_formulas())


def weigh_states(states_of: Callable, model, optimizer) -> WeighedStates:
    """Weigh states by the reader's function. Raises NotYet unless its check passes, AssertionError
    if a kind differs from the formula by a byte."""
    states_of = gives_numbers(states_kind_by_kind, states_of)
    kinds = KindsOfStates(*states_of(model, optimizer))
    found = WeighedStates(kinds, sum(parameter.numel() for parameter in model.parameters()))
    assert found.in_names_of_formulas() == by_formulas(_KINDS.values()), found
    return found


def given_to_explorer(weighed: WeighedStates) -> dict:
    """The values with which the explorer of model states starts: the lab's model, and what was
    weighed."""
    return dict(
        measured={
            "parameter_bytes_per_gpu": weighed.kinds.parameters,
            "gradient_bytes_per_gpu": weighed.kinds.gradients,
            "master_bytes_per_gpu": 0,  # this recipe has no master copy
            "moment_bytes_per_gpu": weighed.kinds.moments,
        },
        model="GPT-2 124M",
        recipe=_RECIPE,
        gpu="T4",
        **config().quantities(),
    )


# --- time -----------------------------------------------------------------------------------------


def rate_of_a_product(device: torch.device) -> float:
    """FLOP/s of a product of two large matrices in fp32."""
    n = 4096 if device.type == "cuda" else 1024
    a, b = torch.randn(2, n, n, device=device)
    seconds = median_seconds(lambda: a @ b, device)
    say_if_busy(seconds)
    rate = 2 * n**3 / seconds
    print(f"{format_as(rate, 'rate')} in fp32, for matrices of {n} x {n}")
    return rate


class TimedStep(NamedTuple):
    """Seconds of a training step: the reader's formula, every matrix product counted, the clock."""

    by_formula: float
    by_products: float
    measured: float

    @property
    def milliseconds(self) -> float:
        return round(1000 * self.measured, 1)

    @property
    def utilisation(self) -> float:
        """The share of the measured rate that the step achieves."""
        return self.by_formula / self.measured

    def table(self) -> Table:
        names = ("6 x parameters x tokens", "every matrix product", "measured")
        rows = [[name, format_as(seconds, "duration")] for name, seconds in zip(names, self)]
        rows.append(["utilisation", format_as(self.utilisation, "percent")])
        return Table(["one step", "time"], rows)


def time_a_step(train_step: Callable, training_seconds: Callable, rate: float) -> TimedStep:
    """Raises NotYet unless the check of the reader's training_seconds passes."""
    training_seconds = gives_numbers(training_seconds_from_rate, training_seconds)
    device, _ = find_device()
    sequence, tokens = config().max_sequence, _BATCH * config().max_sequence
    counts = evaluate(
        ["parameters", "matmul_flops_per_token"], **config().quantities(), sequence=sequence
    )
    measured = median_seconds(train_step, device, repeats=21)
    say_if_busy(measured)
    return TimedStep(
        training_seconds(counts["parameters"], tokens, rate),
        counts["matmul_flops_per_token"] * tokens / rate,
        measured,
    )


def your_question(step: TimedStep, rate: float) -> dict:
    """The values with which the explorer of training times starts: GPT-2, ten billion tokens, this
    machine."""
    memory = memory_bytes(find_device()[0])
    return dict(
        model="GPT-2 124M",
        recipe=_RECIPE,
        tokens=10_000_000_000,
        gpus=1,
        data_parallel=1,
        gpus_per_copy=1,
        flops_per_second=rate,
        utilisation=round(min(1, step.utilisation), 3),  # noise can exceed 1 on a busy machine
        **(dict(gpu_memory_bytes=memory) if memory else {}),
    )


def table_of_gpt3() -> Table:
    """Bytes and time of GPT-3, by formula: 300 billion tokens on one V100 that does 28 TFLOP/s."""
    given = {**RECIPES[_RECIPE].quantities, "parameters": 175_000_000_000}
    states = evaluate(["parameter_bytes", "optimizer_bytes", "states_bytes"], **given)
    amounts = {
        "its parameters": states["parameter_bytes"],
        "with Adam's moments": states["parameter_bytes"] + states["optimizer_bytes"],
        "and with gradients: all model states": states["states_bytes"],
        "memory of the largest GPU in this book": largest_gpu_bytes(),
    }
    days = training_days(
        **given, tokens=300_000_000_000, gpus=1, flops_per_second=28e12, utilisation=1
    )
    rows = [[name, format_as(nbytes, "decimal bytes")] for name, nbytes in amounts.items()]
    rows.append(["300 billion tokens on one V100", format_as(days * 86_400, "years")])
    return Table(["GPT-3 in fp32 with Adam", "amount"], rows)


# --- learning -------------------------------------------------------------------------------------


def figure_of_losses(losses: list[float]):
    """The losses, beside two readers who have learned less."""
    levels = [
        ("guessing blindly", loss_of_blind_guesses(config().vocabulary)),
        ("by frequency alone", loss_by_frequency(tokens_of_text())),
    ]
    return loss_figure(losses, levels)


def print_what_it_writes(model) -> None:
    print(fill(write_text(model, reader(), "Alice ", characters=160), _LINE_LENGTH))


def loss_of_blind_guesses(vocabulary: int) -> float:
    """Mean loss of a model for which all characters are equally likely."""
    return math.log(vocabulary)


def loss_by_frequency(tokens: torch.Tensor) -> float:
    """Mean loss of a model that knows how frequent each character of the text is, and nothing
    else. tokens: [N]."""
    share = torch.bincount(tokens) / len(tokens)
    share = share[share > 0]
    return -(share * share.log()).sum().item()


@torch.no_grad()
def write_text(model, tokenizer, start: str, characters: int, temperature: float = 0.8) -> str:
    """The start, continued by so many characters, each drawn from what the model expects next."""
    window = model.config.max_sequence
    device = next(model.parameters()).device
    written = tokenizer.encode(start)[None].to(device)  # [1, S]
    for _ in range(characters):
        scores = model(written[:, -window:])[0, -1]  # of the next character: [V]
        drawn = torch.multinomial((scores / temperature).softmax(-1), 1)
        written = torch.cat([written, drawn[None]], dim=1)
    return tokenizer.decode(written[0])


def largest_gpu_bytes() -> int:
    """Memory of the largest GPU that the book knows."""
    return max(gpu.quantities["gpu_memory_bytes"] for gpu in GPUS.values())
