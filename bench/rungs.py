"""Virtual steps of one H100 beside steps that were recorded on a real one: the ladder of GPT-2 124M
(coursekit.topics.hardware.one_gpu), the rungs whose products are in bf16,
without a compiler, which virtual GPUs do not have.

    python -m bench.rungs measured

Speeds are a preset's: everything at four fifths of its datasheet. Nothing is fitted.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from bench.virtual import GPU, recorded
from coursekit.lab.virtual import preset_gpu
from coursekit.recordings.races import LARGE_TASK
from coursekit.recordings.recordings import Row
from coursekit.topics.hardware.one_gpu import CHANGES, Rung, build_step
from coursekit.topics.slow_to_fast.pictures import recorded_rungs
from ranklab.virtual import VirtualGPU
from shardlab.mixed_precision.policies import Policy


class AsBuilt(Policy):
    """Takes a model in the dtype in which it was built: fake parameters keep their dtype."""

    def prepare(self, model: nn.Module) -> nn.Module:
        return model


def rows() -> Iterator[Row]:
    recording, _ = recorded_rungs()
    rung = Rung()
    for name, change in CHANGES.items():
        rung = rung._replace(**change)
        if rung.policy.computes_in is not torch.bfloat16 or rung.compiled:
            continue
        (step,) = recording.find("one_gpu.step", rung=name)
        (busy,) = recording.find("one_gpu.gpu_busy", rung=name)
        case = dict(rung=name, recorded_seconds=step.value, gpu_busy=busy.value)
        ratio = virtual_seconds(rung, step.case["batch"]) / step.value
        yield Row("virtual.rung", ratio, "ratio", case)


def virtual_seconds(rung: Rung, batch: int) -> float:
    task = LARGE_TASK._replace(microbatch=batch)
    with VirtualGPU(preset_gpu(GPU)) as gpu:
        torch.set_default_dtype(rung.policy.weights)
        own = rung._replace(policy=AsBuilt(*rung.policy))
        train = build_step(own, task, torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        train()
        with gpu.step() as step:
            train()
    return step.seconds


def main():
    found = list(rows())
    recorded(found, Path(sys.argv[1]), "rungs")
    for row in found:
        seconds = row.case["recorded_seconds"]
        print(f"{row.case['rung']:30}{seconds:9.4f}{row.value * seconds:9.4f}{row.value:7.2f}")


if __name__ == "__main__":
    main()
