"""DeepSpeed beside this book, for `make bench`: the configuration that the chapter on ZeRO shows is
loaded, stages 1 to 3 give this book's losses, and steps race in turns.

An optional peer, which no test needs: `pip install --no-build-isolation -c constraints.txt
".[peers]"`, with g++ and ninja at hand.
"""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from coursekit.recordings.races import (
    TASKS,
    TURNS,
    Result,
    TrainingTask,
    Way,
    step_result,
    train_in_turns,
    train_step,
)
from ranklab.ranks import ranks

CHAPTER = Path(__file__).resolve().parents[4] / "chapters" / "zero.md"
STEPS_COMPARED = 5
LOSSES_APART = 1e-6  # of the losses, in fp32


def race(
    ours: dict[int, Way], task: TrainingTask = TASKS[0], count: int = 2, turns: int = TURNS
) -> list[Result]:
    """Beside our way to each stage. No results where DeepSpeed is not installed."""
    if find_spec("deepspeed") is None:
        print(
            "bench:  DeepSpeed is not installed: pip install --no-build-isolation -c"
            ' constraints.txt ".[peers]"'
        )
        return []
    results = []
    for stage, way in ours.items():
        ways = {"shardlab": way, "DeepSpeed": Way(engine, dict(stage=stage))}
        what = f"stage {stage}, {count} ranks, {task.name}"
        with ranks(count, device="cpu", announce=False) as world:
            if not results:
                batch = world.run(loaded, configuration_on_the_page())[0]
                said = f"chapter 6's configuration is loaded: examples in a step on {count} ranks"
                results.append(Result("deepspeed", said, batch, ""))
            found = [world.run(losses, each, task) for each in ways.values()]
            pairs = [pair for of_rank in zip(*found) for pair in zip(*of_rank)]
            apart = max(abs(mine / other - 1) for mine, other in pairs)
            said = f"{what}: losses of {STEPS_COMPARED} steps, apart at most"
            results.append(Result("deepspeed", said, apart, "", LOSSES_APART))
            times = world.run(train_in_turns, ways, task, turns)[0]
        results.append(step_result("deepspeed", what, times, *ways, shown=what))
    return results


def configuration_on_the_page() -> dict:
    text = CHAPTER.read_text(encoding="utf-8")
    return json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])


# --- on a rank ------------------------------------------------------------------------------------


def deepspeed_here():
    """DeepSpeed, for ranks on CPUs; it takes what it must know from the environment."""
    import logging
    import os
    import warnings

    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK=str(dist.get_rank()),
        WORLD_SIZE=str(dist.get_world_size()),
        LOCAL_RANK="0",
        LOCAL_SIZE=str(dist.get_world_size()),
    )
    warnings.simplefilter("ignore", FutureWarning)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


def deepspeed_on_gloo():
    """deepspeed_here(), whose messages gloo sends: DeepSpeed's own kernel for them takes minutes to
    compile, and waits without end for the lock of a build that was killed."""
    deepspeed = deepspeed_here()
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed("gloo", verbose=False)
    return deepspeed


def engine(net, optimizer_cls, stage: int, **settings):
    """Its engine is the model and the optimizer. It learns of backward from the loss itself, since
    version 0.18.3."""
    made, *_ = deepspeed_here().initialize(
        model=net,
        optimizer=optimizer_cls(net.parameters(), **settings),
        config={
            "train_micro_batch_size_per_gpu": 1,  # which it only reports
            "zero_optimization": {"stage": stage},
            "gradient_clipping": 0.0,  # else 1.0
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    return made, made


def loaded(configuration: dict) -> int:
    deepspeed_here().init_distributed("gloo", verbose=False)
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(configuration).train_batch_size


def losses(way: Way, task: TrainingTask) -> list[float]:
    """The losses of each step, by plain SGD: Adam makes noise of a gradient that is zero but for
    rounding, the key bias's."""
    model, optimizer = way.build(task.model(), torch.optim.SGD, lr=0.1)
    mine = task.batches(steps=STEPS_COMPARED)[:, dist.get_rank()]
    return [train_step(model, optimizer, tokens).item() for tokens in mine]
