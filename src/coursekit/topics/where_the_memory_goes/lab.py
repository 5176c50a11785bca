"""Functions of lab 3: a training step under the ledger, the formulas of that step in the lab's
words, and the tables and figures of both."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import NamedTuple

import torch

from coursekit.exercises.checker import LIMIT_SECONDS
from coursekit.exercises.patience import at_most
from coursekit.formulas import evaluate, quantities
from coursekit.machine.capabilities import find_device
from coursekit.machine.limit import Attempt, cannot_try, try_within
from coursekit.recordings.recordings import Recording, measured_or_recorded, nearby, recorded
from coursekit.show.tables import Table
from coursekit.topics.where_the_memory_goes import exercises, runs
from coursekit.topics.where_the_memory_goes.figures import timeline_figure
from coursekit.topics.where_the_memory_goes.formulas.step import step_timeline
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.ledger import Ledger
from shardlab.measure.weigh import weigh

PIECES = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "step_counter_bytes",
    "layer_activation_bytes",
    "head_activation_bytes",
    "batch_bytes",
    "logit_bytes",
)
LOSS_BYTES = 4  # one fp32 number
_CONFIG = GPTConfig(**runs.SIZES)
_SMALL = GPTConfig(**{**runs.SIZES, "vocabulary": 1_000})
LIMIT_BYTES = 900 * 2**20
_LINE_LENGTH = 66
_ACCUMULATED = ((8, 1), (4, 1), (4, 2), (4, 3), (2, 4), (1, 8))  # sequences, microbatches


def watch_step(
    config: GPTConfig = _CONFIG,
    mode: str = "loop",
    steps: int = 2,
    batch: int = runs.BATCH,
    sequence: int = runs.SEQUENCE,
    microbatches: int = 1,
) -> Ledger:
    """The ledger of the last of the training steps, on the GPU if there is one; Adam makes its
    tensors in the first. `mode` is how the optimizer runs."""
    device, _ = find_device()
    with device:
        model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), **runs.MODES[mode])
    for _ in range(steps):
        with Ledger(model, optimizer) as ledger:
            for _ in range(microbatches):
                tokens = torch.zeros(batch, sequence, dtype=torch.long, device=device)
                targets = torch.zeros_like(tokens)
                loss = next_token_loss(model(tokens), targets)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return ledger


def figure_of_step(ledger: Ledger):
    """The bytes of the lab's step, operation by operation, and the formulas as rings."""
    predicted = step_timeline(**step_quantities(_CONFIG))
    return timeline_figure(ledger.timeline, predicted=predicted)


def table_of_storages(tensors: Mapping[str, torch.Tensor], **owners: torch.Tensor) -> Table:
    """A table of tensors: the bytes of each, those of its storage, and whose storage that is."""
    rows = [
        [
            name,
            tensor.nbytes,
            tensor.untyped_storage().nbytes(),
            whose_storage(tensor, **owners),
        ]
        for name, tensor in tensors.items()
    ]
    return Table(["tensor", "elements x bytes each", "bytes of its storage", "whose storage"], rows)


def whose_storage(tensor: torch.Tensor, **owners: torch.Tensor) -> str:
    """The name of the owner whose storage the tensor looks at, or "its own"."""
    address = tensor.untyped_storage().data_ptr()
    for name, owner in owners.items():
        if owner.untyped_storage().data_ptr() == address:
            return name
    return "its own"


def table_of_modules(module: torch.nn.Module, x: torch.Tensor) -> Table:
    """A table of the bytes that each part of a module keeps."""
    heads = ["module", "kind", "parameters", "buffers", "kept for backward"]
    device, _ = find_device()
    return Table(heads, weigh(module.to(device), x.to(device)))


# --- formulas of a step ---------------------------------------------------------------------------


def step_quantities(config: GPTConfig, **changes: int) -> dict:
    """The quantities that the formulas of the lab's step need, for fp32 Adam; `changes` are other
    values, such as microbatch=4."""
    return {
        **quantities(recipe="fp32 Adam", **config.quantities(), **runs.STEP_QUANTITIES),
        **changes,
    }


def pieces_of_a_step(config: GPTConfig = _CONFIG) -> dict[str, int]:
    """Bytes of each piece that a step has in memory, some of them at some time."""
    return evaluate(PIECES, allow_unused=True, **step_quantities(config))


def peak_by_formula(config: GPTConfig, **changes: int) -> int:
    """Bytes at the peak of a step."""
    return evaluate(["peak_bytes"], **step_quantities(config, **changes))["peak_bytes"]


def table_of_pieces() -> Table:
    return Table(["piece", "bytes"], pieces_of_a_step().items())


def table_of_peak(ledger: Ledger, by_formula: int | None = None) -> Table:
    """A table of the bytes at the peak. Prints where that is, and how far the ledger is from the
    formula. Raises AssertionError on a CPU unless they are equal."""
    peak = ledger.peak
    total = peak.bytes.total
    expected = peak_by_formula(_CONFIG) if by_formula is None else by_formula
    assert find_device()[0].type == "cuda" or total == expected, (total, expected)
    print(f"ledger {total:,}, formula {expected:,}: {total - expected:,} bytes apart")
    print(f"the peak is at {peak.operation} (phase: {peak.phase})")
    return Table(["at the peak", "bytes"], peak.bytes._asdict().items())


def given_to_explorer(ledger: Ledger) -> dict:
    """The values with which the explorer starts: the lab's step, and the ledger's counts."""
    counted = ledger.peak.bytes
    return dict(
        measured={
            "parameter_bytes": counted.parameters,
            "optimizer_at_peak_bytes": counted.optimizer,
            "gradients_at_peak_bytes": counted.gradients,
            "activations_at_peak_bytes": counted.activations,
            "temporaries_at_peak_bytes": counted.temporaries,
        },
        model="GPT-2 124M",
        recipe="fp32 Adam",
        gpu="T4",
        **_CONFIG.quantities(),
        **runs.STEP_QUANTITIES,
    )


def parameters_of(config: GPTConfig) -> int:
    """How many parameters a GPT of those sizes has."""
    return evaluate(["parameters"], **config.quantities())["parameters"]


def update_by_formula(config: GPTConfig, mode: str) -> int:
    """Bytes that the optimizer's update needs beside the states; `mode` is how it runs."""
    given = step_quantities(config, optimizer_mode=list(runs.MODES).index(mode))
    name = "optimizer_temporary_bytes"
    return evaluate([name], allow_unused=True, **given)[name]


def update_by_ledger(ledger: Ledger) -> int:
    """The most temporary bytes in the optimizer as the ledger counts them, but for the loss, which
    still has a name."""
    marks = [mark for mark in ledger.timeline if mark.phase == "optimizer"]
    return max((mark.bytes.temporaries for mark in marks), default=LOSS_BYTES) - LOSS_BYTES


class Updates(NamedTuple):
    """mode -> bytes that the update needs beside the states: by formula, by the ledger."""

    nbytes: dict[str, tuple[int, int]]

    @property
    def foreach_bytes_per_parameter(self) -> float:
        return self.nbytes["foreach"][1] / parameters_of(_SMALL)

    def table(self) -> Table:
        rows = [[mode, *pair] for mode, pair in self.nbytes.items()]
        return Table(["optimizer", "besides the states: formula", "ledger"], rows)


def weigh_updates() -> Updates:
    """A model of a small vocabulary, in each mode of the optimizer."""
    return Updates(
        {
            mode: (update_by_formula(_SMALL, mode), update_by_ledger(watch_step(_SMALL, mode)))
            for mode in runs.MODES
        }
    )


class KnownModel(NamedTuple):
    """A step of a known model under fake tensors, and the formula's peak."""

    ledger: Ledger
    by_formula: int

    @property
    def peak_gb(self) -> float:
        return self.ledger.peak.bytes.total / 10**9

    def table(self) -> Table:
        return table_of_peak(self.ledger, self.by_formula)


def weigh_known_model(name: str, sequence: int) -> KnownModel:
    """Its first step, one sequence. A fake tensor has no memory behind it."""
    config = GPTConfig(**quantities(model=name))
    with FakeTensorMode():
        ledger = watch_step(config, steps=1, batch=1, sequence=sequence)
    given = dict(microbatch=1, sequence=sequence, first_step=1)
    return KnownModel(ledger, peak_by_formula(config, **given))


# --- what does not fit ----------------------------------------------------------------------------


class Tried(NamedTuple):
    """The attempts, or why none was made."""

    attempts: list[Attempt]
    why_not: str

    @property
    def fitted(self) -> list[int]:
        return [attempt.case["batch"] for attempt in self.attempts if not attempt.error]

    def __str__(self) -> str:
        if not self.attempts:
            return fill(self.why_not, _LINE_LENGTH)
        last = self.attempts[-1]
        fitted = ", ".join(map(str, self.fitted)) or "nothing"
        if not last.error:
            return f"fitted: {fitted}, and nothing failed"
        refused = f"{last.case['batch']} did not: {refusal_in_words(last.error)}"
        return fill(f"fitted: {fitted}; {refused}", _LINE_LENGTH)


def refusal_in_words(error: str) -> str:
    """The words of an allocator's refusal: the bytes that it was asked for; all of it where it
    names none."""
    asked = re.search(r"tried to allocate (\d+) bytes", error)
    return f"no room for a tensor of {int(asked[1]):,} bytes" if asked else error


def one_step(batch: int) -> None:
    """The lab's first step, with so many sequences."""
    watch_step(steps=1, batch=batch)


def try_batches(batches: Sequence[int]) -> Tried:
    """One after the other, until one does not fit into 900 MiB."""
    device, _ = find_device()
    why_not = cannot_try(LIMIT_BYTES, device)
    cases = [{"batch": batch} for batch in batches]
    return Tried([] if why_not else try_within(LIMIT_BYTES, device, one_step, cases), why_not)


class Accumulated(NamedTuple):
    """(sequences, microbatches) -> bytes at the peak: by formula, by the ledger."""

    nbytes: dict[tuple[int, int], tuple[int, int]]

    @property
    def second_microbatch_adds(self) -> int:
        return self.nbytes[4, 2][1] - self.nbytes[4, 1][1]

    def table(self) -> Table:
        rows = [
            [f"{times} x {batch}", *pair, "yes" if pair[1] <= LIMIT_BYTES else "no"]
            for (batch, times), pair in self.nbytes.items()
        ]
        return Table(["microbatches x sequences", "formula", "ledger", "fits 900 MiB"], rows)


def weigh_accumulation() -> Accumulated:
    """The lab's first step cut into microbatches, under fake tensors: they count the same."""
    found = {}
    for batch, times in _ACCUMULATED:
        with FakeTensorMode():
            counted = watch_step(steps=1, batch=batch, microbatches=times).peak.bytes.total
        given = dict(microbatch=batch, accumulation_steps=times, first_step=1)
        found[batch, times] = peak_by_formula(_CONFIG, **given), counted
    return Accumulated(found)


def table_of_what_is_left(train: Callable, steps: int = 3, seconds: float = LIMIT_SECONDS) -> Table:
    """The modules that made most of what the reader's loop leaves behind. Raises TimeoutError for a
    loop that does not end."""
    model = GPT(exercises.CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    with Ledger(model, optimizer) as ledger, at_most(seconds):
        losses = train(model, optimizer, exercises.pairs(steps))
    count = len(losses) if isinstance(losses, (list, tuple)) else 0
    print(f"losses: {count}; activations left: {ledger.bytes.activations:,} bytes")
    made = sorted(ledger.by_module("activations").items(), key=lambda item: -item[1])
    return Table(["made by", "bytes left"], made[:4] or [["nobody", 0]])


# --- GPUs -----------------------------------------------------------------------------------------


def rows_to_nvidia_smi(
    device: torch.device, why_not: str, recordings: Iterable[Recording]
) -> tuple[list[list], str]:
    """(rows from the ledger to nvidia-smi, where they were measured): here if the device is a GPU,
    else from a recording; without one there are no rows. `why_not` is find_device's reason."""
    measure = partial(runs.peaks, device) if device.type == "cuda" else None
    measured, source = measured_or_recorded(measure, recordings, f"not run, because {why_not}")
    account = [row for row in measured if row.name == "account.row"]
    return [
        [row.case["row"], row.value] for row in account if row.case["optimizer"] == "loop"
    ], source


def table_to_nvidia_smi() -> Table | None:
    """A table from the ledger to nvidia-smi; where nothing was measured, a line says so."""
    account, source = rows_to_nvidia_smi(*find_device(), nearby())
    print(source)
    return Table(["from the ledger to nvidia-smi", "bytes"], account) if account else None


def recorded_predictions() -> dict[str, str]:
    """The values recorded on a GPU, by the names of the predictions."""
    return {"peak of the step, bytes": recorded(nearby(), "step.peak", optimizer="loop")}
