"""Measurements of a training step for `make gpu`: each function yields rows for one device.

Byte rows carry what the formula says beside what was counted, as far as there is a formula; where
CUDA differs from it, the recording shows by how much.
"""

from collections.abc import Iterator

import torch

from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import Run
from coursekit.recordings.recordings import Row
from coursekit.topics.where_the_memory_goes.cuda_account import CudaAccount
from ranklab.measure.clock import median_seconds
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss

MODES = {"loop": dict(foreach=False), "foreach": dict(foreach=True), "fused": dict(fused=True)}
# the step that chapter 3 takes apart
SIZES = dict(layers=4, hidden=256, heads=4, vocabulary=50_257, max_sequence=256)
BATCH, SEQUENCE = 2, 256
STEP_QUANTITIES = dict(
    microbatch=BATCH,
    sequence=SEQUENCE,
    accumulation_steps=1,
    first_step=0,
    optimizer_mode=0,
    dropout=0,
    fused_attention=1,
)  # the same in the words of the formulas, the optimizer's loop


def _training(device, mode, sizes):
    """(config, model, optimizer, step): one steady step of fp32 Adam; the first, which makes the
    states, is behind it."""
    torch.manual_seed(0)
    config = GPTConfig(**sizes)
    shape = (BATCH, config.max_sequence)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **MODES[mode])

    def step():
        tokens, targets = (torch.zeros(shape, dtype=torch.long, device=device) for _ in range(2))
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return config, model, optimizer, step


def states(device: torch.device, sizes: dict[str, int] = SIZES) -> Iterator[Row]:
    """Bytes of the model states after a step, for each way of running the optimizer."""
    for mode in MODES:
        yield from attempt(f"states, {mode}", states_of(device, mode, sizes))


def states_of(device, mode, sizes) -> Iterator[Row]:
    config, model, optimizer, _ = _training(device, mode, sizes)
    with Ledger(model, optimizer) as ledger:
        found = ledger.bytes
    given = {**config.quantities(), **RECIPES["fp32 Adam"].quantities}
    want = evaluate(["parameter_bytes", "optimizer_bytes", "step_counter_bytes"], **given)
    counters = sum(counters_on(optimizer, kind) for kind in ("cpu", "cuda"))
    optimizer_bytes = sum(t.nbytes for state in optimizer.state.values() for t in state.values())
    for name, nbytes, formulas in (
        ("states.parameters", found.parameters, ["parameter_bytes"]),
        ("states.optimizer", optimizer_bytes, ["optimizer_bytes", "step_counter_bytes"]),
        ("states.step_counters", counters, ["step_counter_bytes"]),
    ):
        predicted = " + ".join(formulas), sum(want[formula] for formula in formulas)
        yield Row(name, nbytes, "bytes", dict(optimizer=mode), *predicted)


def peaks(device: torch.device, sizes: dict[str, int] = SIZES) -> Iterator[Row]:
    """The peak of a step by the ledger, and on CUDA each row from there to what the driver
    prints."""
    for mode in MODES:
        yield from attempt(f"peaks, {mode}", peak_of(device, mode, sizes))


def peak_of(device, mode, sizes) -> Iterator[Row]:
    """On CUDA a second step gives the account and the peak: of what lies on the GPU, and of step
    counters wherever they lie."""
    config, model, optimizer, step = _training(device, mode, sizes)
    with Ledger(model, optimizer) as ledger:
        step()
    given = {**config.quantities(), **STEP_QUANTITIES, **RECIPES["fp32 Adam"].quantities}
    given.update(sequence=config.max_sequence, optimizer_mode=list(MODES).index(mode))
    want = evaluate(["peak_bytes"], **given)
    peak = ledger.peak
    nbytes, rows = peak.bytes.total, ()
    if device.type == "cuda":
        del ledger
        with Ledger(model, optimizer, device="cuda") as ledger, CudaAccount(ledger) as account:
            step()
        rows, peak = account.rows(), ledger.peak
        # fused attention leaves numbers on the host, 16 bytes a layer, that no formula counts
        nbytes = peak.bytes.total + counters_on(optimizer, "cpu")
    case = dict(optimizer=mode, phase=peak.phase, operation=peak.operation)
    yield Row("step.peak", nbytes, "bytes", case, "peak_bytes", want["peak_bytes"])
    for name, amount in rows:
        yield Row("account.row", amount, "bytes", dict(optimizer=mode, row=name))


def counters_on(optimizer: torch.optim.Optimizer, device: str) -> int:
    """The bytes of the counters that lie on devices of this kind: on the CPU, unless the optimizer
    is fused or capturable."""
    counters = [state["step"] for state in optimizer.state.values()]
    return sum(counter.nbytes for counter in counters if counter.device.type == device)


def rates(device: torch.device, size: int | None = None) -> Iterator[Row]:
    """Rate of a large product, by element type."""
    size = size or (8192 if device.type == "cuda" else 512)
    for dtype in (torch.float32, torch.bfloat16):
        yield from attempt(f"rates, {dtype}", rate_of(device, dtype, size))


def rate_of(device, dtype, size) -> Iterator[Row]:
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = median_seconds(lambda: a @ b, device)
    case = dict(dtype=str(dtype).removeprefix("torch."), size=size)
    yield Row("matmul.rate", 2 * size**3 / seconds, "FLOP/s", case)


SMALL = dict(layers=2, hidden=32, heads=4, vocabulary=101, max_sequence=32)
RUNS = (
    Run(10, states, dict(sizes=SMALL)),
    Run(20, peaks, dict(sizes=SMALL)),
    Run(6, rates, dict(size=64)),
)
