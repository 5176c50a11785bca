"""Virtual steps of one H100 beside steps that were recorded on a real one: the ladder of GPT-2
124M (coursekit.topics.hardware.one_gpu) and the precisions of half its batch. Left out are rungs
that need a compiler, which virtual GPUs do not have, and fp16, whose scaler reads.

    python -m bench.rungs measured

Four constants of data/virtual.csv are fitted to the rungs at even places; the others are held out.
`python -m bench.rungs` prints the table alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from bench.virtual import GPU as H100
from bench.virtual import recorded
from coursekit.lab.virtual import virtual_gpu
from coursekit.recordings.races import LARGE_TASK
from coursekit.recordings.recordings import Recording, Row
from coursekit.topics.hardware.one_gpu import CHANGES, Rung, build_step
from coursekit.topics.slow_to_fast.pictures import recorded_rungs
from ranklab.virtual import VirtualStep
from shardlab.mixed_precision.policies import Policy

RECORDED_AS = {"master copies in groups": "masters in piles"}
# a policy -> the rung that it trains like
POLICIES = {
    "FP32": "fp32",
    "TF32": "TF32",
    "AUTOCAST_BF16": "autocast to bf16",
    "BF16": "master copies in groups",
}


class AsBuilt(Policy):
    """Takes a model in the dtype in which it was built: fake parameters keep their dtype."""

    def prepare(self, model: nn.Module) -> nn.Module:
        return model


def eager_rungs() -> dict[str, Rung]:
    rung, found = Rung(), {}
    for name, change in CHANGES.items():
        rung = rung._replace(**change)
        if not rung.compiled:
            found[name] = rung
    return found


def cases(recording: Recording) -> Iterator[tuple[str, Rung, int, Row, Row]]:
    """(name, rung, batch, its seconds, the share of them in which a kernel ran)"""
    rungs = eager_rungs()
    for name, rung in rungs.items():
        called = dict(rung=RECORDED_AS.get(name, name))
        (step,), (busy,) = (
            recording.find(f"one_gpu.{one}", **called) for one in ("step", "gpu_busy")
        )
        yield called["rung"], rung, step.case["batch"], step, busy
    for policy, name in POLICIES.items():
        called, batch = dict(policy=policy, task=LARGE_TASK.name), LARGE_TASK.microbatch
        (step,), (busy,) = (
            recording.find(f"mixed_precision.{one}", **called) for one in ("step", "gpu_busy")
        )
        yield f"{RECORDED_AS.get(name, name)}, batch {batch}", rungs[name], batch, step, busy


def rows() -> Iterator[Row]:
    for place, (name, rung, batch, step, busy) in enumerate(cases(recorded_rungs()[0])):
        case = dict(rung=name, recorded_seconds=step.value, gpu_busy=busy.value)
        ratio = virtual_step(rung, batch).seconds / step.value
        yield Row("virtual.rung", ratio, "ratio", dict(**case, fitted=place % 2 == 0))


def virtual_step(rung: Rung, batch: int) -> VirtualStep:
    task = LARGE_TASK._replace(microbatch=batch)
    with virtual_gpu(H100) as gpu:
        torch.set_default_dtype(rung.policy.weights)
        own = rung._replace(policy=AsBuilt(*rung.policy))
        train = build_step(own, task, torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        train()
        with gpu.step() as step:
            train()
    return step


def main():
    found = list(rows())
    if sys.argv[1:]:
        recorded(found, Path(sys.argv[1]), "rungs")
    for row in found:
        seconds, kind = row.case["recorded_seconds"], "fitted" if row.case["fitted"] else "held out"
        numbers = f"{seconds:9.4f}{row.value * seconds:9.4f}{row.value:7.2f}"
        print(f"{row.case['rung']:36}{kind:10}{numbers}")


if __name__ == "__main__":
    main()
