"""What lab 3 looks up besides its own training step: the formulas of a step in the lab's words, and
the rows of its tables."""

from collections.abc import Iterable
from functools import partial

import torch

from shardlab.formulas import evaluate, quantities
from shardlab.gpt import GPTConfig
from shardlab.measure.ledger import Ledger
from shardlab.measure.recordings import Recording, measured_or_recorded
from shardlab.topics.where_the_memory_goes import runs

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


def whose_storage(tensor: torch.Tensor, **owners: torch.Tensor) -> str:
    """The name of the owner whose storage the tensor looks at, or "its own"."""
    address = tensor.untyped_storage().data_ptr()
    for name, owner in owners.items():
        if owner.untyped_storage().data_ptr() == address:
            return name
    return "its own"


# --- formulas of a step ---------------------------------------------------------------------------


def step_quantities(config: GPTConfig, **changes: int) -> dict:
    """What the formulas of the lab's step need, for fp32 Adam; `changes` are other values, such as
    microbatch=4."""
    return {
        **quantities(recipe="fp32 Adam", **config.quantities(), **runs.STEP_QUANTITIES),
        **changes,
    }


def pieces_of_a_step(config: GPTConfig) -> dict[str, int]:
    """Bytes of each piece that a step has in memory, some of them at some time."""
    return evaluate(PIECES, allow_unused=True, **step_quantities(config))


def peak_by_formula(config: GPTConfig, **changes: int) -> int:
    """Bytes at the peak of a step."""
    return evaluate(["peak_bytes"], **step_quantities(config, **changes))["peak_bytes"]


def parameters_of(config: GPTConfig) -> int:
    """How many parameters a GPT of those sizes has."""
    return evaluate(["parameters"], **config.quantities())["parameters"]


def update_by_formula(config: GPTConfig, mode: str) -> int:
    """Bytes that the optimizer's update needs beside the states; `mode` is how it runs."""
    given = step_quantities(config, optimizer_mode=list(runs.MODES).index(mode))
    name = "optimizer_temporary_bytes"
    return evaluate([name], allow_unused=True, **given)[name]


def update_by_ledger(ledger: Ledger) -> int:
    """The same, counted: most temporary bytes in the optimizer, but for the loss, which still has a
    name."""
    marks = [mark for mark in ledger.timeline if mark.phase == "optimizer"]
    return max((mark.bytes.temporaries for mark in marks), default=LOSS_BYTES) - LOSS_BYTES


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
