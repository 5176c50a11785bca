"""DeepSpeed beside ours: the configuration that chapter 6 shows is loaded, stages 1 to 3 give our
losses, and steps race in turns.

An optional peer, which no test needs: `pip install --no-build-isolation -c constraints.txt
".[peers]"`, with g++ and ninja at hand.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles

from bench.data_parallel import SHAPES, build
from bench.report import Result
from bench.turns import PAIRS, in_turns

CHAPTER = Path(__file__).resolve().parents[1] / "chapters" / "zero.md"
MODEL = "5.3M parameters"
RANKS, MICROBATCH, STEPS = 2, 4, 5
APART = 1e-6  # of the losses, in fp32


def measure_deepspeed() -> list[Result]:
    if find_spec("deepspeed") is None:
        print(
            "bench:  DeepSpeed is not installed: pip install --no-build-isolation -c"
            ' constraints.txt ".[peers]"'
        )
        return []
    from shardlab.ranks import ranks

    results, shape = [], SHAPES[MODEL]
    for stage in (1, 2, 3):
        with ranks(RANKS, device="cpu", announce=False) as world:
            if stage == 1:
                batch = world.run(loaded, configuration_on_the_page())[0]
                results.append(
                    Result(
                        "deepspeed",
                        "chapter 6's configuration is loaded: examples in a step on 2 ranks",
                        batch,
                        "",
                    )
                )
            what = f"stage {stage}, {RANKS} ranks, {MODEL}"
            pairs = [pair for of_rank in world.run(losses, stage, shape) for pair in of_rank]
            apart = max(abs(ours / theirs - 1) for ours, theirs in pairs)
            results.append(
                Result(
                    "deepspeed", f"{what}: losses of {STEPS} steps, apart at most", apart, "", APART
                )
            )
            times = world.run(race, stage, shape)[0]
            low, *_, high = quantiles(
                [a / b for a, b in zip(times["ours again"], times["ours"])], n=20
            )
            ratio = median(a / b for a, b in zip(times["ours"], times["DeepSpeed"]))
            note = (
                f"{PAIRS} interleaved turns; DeepSpeed {1000 * median(times['DeepSpeed']):.0f} ms;"
                f" A/A {low:.2f} to {high:.2f}"
            )
            results.append(
                Result(
                    "deepspeed",
                    f"{what}: step, ours / DeepSpeed's",
                    round(ratio, 3),
                    "x",
                    None,
                    note,
                )
            )
    return results


def configuration_on_the_page() -> dict:
    return json.loads(
        re.search(r"```json\n(.*?)```", CHAPTER.read_text(encoding="utf-8"), re.DOTALL)[1]
    )


# --- on a rank ------------------------------------------------------------------------------------


def deepspeed_here():
    """DeepSpeed, for ranks on CPUs; it takes what it must know from the environment."""
    import logging
    import os
    import warnings

    import torch.distributed as dist

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


def loaded(configuration: dict) -> int:
    deepspeed_here().init_distributed("gloo", verbose=False)
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig(configuration).train_batch_size


def losses(stage: int, shape: dict) -> list[tuple[float, float]]:
    """(ours, theirs) of each step, by plain SGD: Adam makes noise of a gradient that is zero but
    for rounding, the key bias's."""
    import torch

    both = []
    for train in (
        ours(stage, shape, torch.optim.SGD, lr=0.1),
        theirs(stage, shape, torch.optim.SGD, lr=0.1),
    ):
        torch.manual_seed(torch.distributed.get_rank())
        both.append([train() for _ in range(STEPS)])
    return list(zip(*both))


def race(stage: int, shape: dict) -> dict[str, list[float]]:
    import torch

    mine, other = (make(stage, shape, torch.optim.AdamW, lr=1e-3) for make in (ours, theirs))
    return in_turns({"ours": mine, "DeepSpeed": other, "ours again": mine})


def ours(stage: int, shape: dict, optimizer_cls, **arguments):
    """A step, to be called, which returns its loss."""
    from shardlab import zero
    from shardlab.zero import faster

    net = build(shape)
    _, optimizer = zero.shard(
        net, optimizer_cls, stage=stage, collectives=faster.Ring(), **arguments
    )

    def finish(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step_of(net, finish, shape)


def theirs(stage: int, shape: dict, optimizer_cls, **arguments):
    net = build(shape)
    engine, *_ = deepspeed_here().initialize(
        model=net,
        optimizer=optimizer_cls(net.parameters(), **arguments),
        config={
            # else 1.0
            "train_micro_batch_size_per_gpu": MICROBATCH,
            "zero_optimization": {"stage": stage},
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )

    def finish(loss):
        engine.backward(loss)
        engine.step()

    return step_of(engine, finish, shape)


def step_of(net, finish, shape: dict):
    import torch

    from shardlab.gpt import next_token_loss

    def step() -> float:
        tokens = torch.randint(shape["vocabulary"], (MICROBATCH, shape["max_sequence"]))
        loss = next_token_loss(net(tokens), tokens)
        finish(loss)
        return loss.item()

    return step
