"""Lab 3 beside its cells: its step by the formulas, tables, and what was recorded on a GPU."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from coursekit.exercises.checker import LIMIT_SECONDS
from coursekit.exercises.patience import at_most
from coursekit.formulas import evaluate, quantities
from coursekit.machine.capabilities import find_device
from coursekit.recordings.recordings import Recording, measured_or_recorded, nearby, recorded
from coursekit.show.tables import Table
from coursekit.topics.where_the_memory_goes import exercises, runs
from coursekit.topics.where_the_memory_goes.figures import timeline_figure
from coursekit.topics.where_the_memory_goes.formulas.step import step_timeline
from coursekit.topics.where_the_memory_goes.limit import try_within as try_within
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig

PIECES = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "step_counter_bytes"]
PIECES += ["layer_activation_bytes", "head_activation_bytes", "batch_bytes", "logit_bytes"]


def by_step_formulas(config: GPTConfig, *names: str, **changes) -> dict[str, int]:
    """Formulas of the lab's step with fp32 Adam; `changes` are other values, as microbatch=4."""
    step = quantities(recipe="fp32 Adam", **config.quantities(), **runs.STEP_QUANTITIES)
    return evaluate(names, allow_unused=True, **{**step, **changes})


def peak_by_formula(config: GPTConfig, **changes) -> int:
    return by_step_formulas(config, "peak_bytes", **changes)["peak_bytes"]


def update_by_formula(config: GPTConfig, mode: int) -> int:
    """Bytes of the update beside the states; `mode` is the optimizer's place in runs.MODES."""
    name = "optimizer_temporary_bytes"
    return by_step_formulas(config, name, optimizer_mode=mode)[name]


def figure_of_step(ledger: Ledger, config: GPTConfig):
    """The bytes of the step, operation by operation, and the formulas as rings."""
    step = quantities(recipe="fp32 Adam", **config.quantities(), **runs.STEP_QUANTITIES)
    return timeline_figure(ledger.timeline, predicted=step_timeline(**step))


def given_to_explorer(ledger: Ledger, config: GPTConfig) -> dict:
    """The lab's step, and what the ledger counts at its peak."""
    names = ["parameter_bytes"]
    names += [f"{one}_at_peak_bytes" for one in ("optimizer", "gradients", "activations")]
    of = ledger.peak.bytes
    counted = dict(zip(names, (of.parameters, of.optimizer, of.gradients, of.activations)))
    presets = dict(model="GPT-2 124M", recipe="fp32 Adam", gpu="T4")
    measured = counted | dict(temporaries_at_peak_bytes=of.temporaries)
    return dict(measured=measured, **presets, **config.quantities(), **runs.STEP_QUANTITIES)


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


def rows_to_nvidia_smi(device: torch.device, why_not: str, recordings: Iterable[Recording]):
    """(rows from the ledger to nvidia-smi, where they were measured): here if the device is a GPU,
    else from a recording; without one there are no rows. `why_not` is find_device's reason."""
    measure = partial(runs.peaks, device) if device.type == "cuda" else None
    measured, source = measured_or_recorded(measure, recordings, f"not run, because {why_not}")
    account = [row for row in measured if row.name == "account.row"]
    account = [row for row in account if row.case["optimizer"] == "loop"]
    return [[row.case["row"], row.value] for row in account], source


def table_to_nvidia_smi() -> Table | None:
    """A table from the ledger to nvidia-smi; where nothing was measured, a line says so."""
    account, source = rows_to_nvidia_smi(*find_device(), nearby())
    print(source)
    return Table(["from the ledger to nvidia-smi", "bytes"], account) if account else None


def recorded_predictions() -> dict[str, str]:
    """The values recorded on a GPU, by the names of the predictions."""
    return {"peak of the step, bytes": recorded(nearby(), "step.peak", optimizer="loop")}
