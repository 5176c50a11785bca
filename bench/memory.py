"""The byte ledger: what watching costs, whole training steps without their memory, and many more
random steps than the tests run."""

import json
import random
import subprocess
import sys
from statistics import median
from time import perf_counter

from coursekit.recordings.races import AGAIN, TURNS, Result, identical
from ranklab.measure.timing import median_ratio

MANY_STEPS = 3000
OVERHEAD = 1.10
FAKE_SECONDS = {"Llama 7B": 10, "GPT-3 175B": 30}
FAKE_GIB = 1

# A whole training step of a preset under fake tensors, in a process of its own, whose memory is
# then all there is to count.
FAKE_STEP = """
import json, resource, sys, time
import torch
from coursekit.formulas import quantities
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from ranklab.measure.ledger import Ledger
from shardlab.common.torch_internals import FakeTensorMode
started = time.perf_counter()
with FakeTensorMode():
    model = GPT(GPTConfig(**quantities(model=sys.argv[1])))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    def step():
        tokens = torch.zeros(1, 2048, dtype=torch.long)
        next_token_loss(model(tokens), torch.zeros_like(tokens)).backward()
        optimizer.step()
        optimizer.zero_grad()
    step()
    built = time.perf_counter()
    with Ledger(model, optimizer) as ledger:
        step()
print(json.dumps(dict(
    seconds=time.perf_counter() - started,
    step=time.perf_counter() - built,
    peak=ledger.peak.bytes.total,
    where=ledger.peak.operation,
    real=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
)))
"""


def measure_memory(root) -> list[Result]:
    sys.path.insert(0, str(root / "tests" / "where_the_memory_goes"))  # the tests' steps
    return [*measure_overhead(), *measure_fake_steps(), *measure_many_steps()]


def measure_overhead() -> list[Result]:
    """A step with the ledger over one without, pair by pair; and a step without over another one,
    which is the noise."""
    import torch

    from ranklab.measure.ledger import Ledger
    from shardlab.common.torch_internals import TorchDispatchMode
    from shardlab.gpt import GPT, GPTConfig, next_token_loss

    class Nothing(TorchDispatchMode):
        """The least that watching every operation costs."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    results = []
    for name, microbatch, changes in (
        ('the step of chapter "Where the memory goes"', 2, {}),
        ("a small step", 4, dict(hidden=128, vocabulary=1000, max_sequence=64)),
    ):
        torch.manual_seed(0)
        config = GPTConfig(
            **{
                **dict(layers=4, hidden=256, heads=4, vocabulary=50_257, max_sequence=256),
                **changes,
            }
        )
        model = GPT(config)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(config.vocabulary, (microbatch, config.max_sequence + 1))

        def step(model=model, optimizer=optimizer, tokens=tokens):
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()

        def seconds(watcher=None):
            if watcher is None:
                started = perf_counter()
                step()
                return perf_counter() - started
            with watcher:
                started = perf_counter()
                step()
                return perf_counter() - started

        for _ in range(3):
            seconds(Ledger(model, optimizer))
        turns = [
            (seconds(), seconds(Ledger(model, optimizer)), seconds(Nothing()), seconds())
            for _ in range(TURNS)
        ]
        names = ("without", "ledger", "nothing", "without" + AGAIN)
        times = {name: [turn[place] for turn in turns] for place, name in enumerate(names)}
        with Ledger(model, optimizer) as ledger:
            step()
        low, high = identical(times)
        note = (
            f"{TURNS} interleaved turns; {1000 * median(times['without']):.0f} ms,"
            f" {len(ledger.timeline)} lines; A/A {low:.2f} to {high:.2f}"
        )
        results += [
            Result(
                "memory",
                f"{name}: with the ledger / without",
                round(median_ratio(times, "ledger", "without"), 3),
                "x",
                OVERHEAD,
                note,
            ),
            Result(
                "memory",
                f"{name}: with a mode that does nothing / without",
                round(median_ratio(times, "nothing", "without"), 3),
                "x",
            ),
        ]
    return results


def measure_fake_steps() -> list[Result]:
    """Seconds and real memory of a training step of a model that fits no machine here."""
    results = []
    for name, most in FAKE_SECONDS.items():
        done = subprocess.run(
            [sys.executable, "-c", FAKE_STEP, name], check=True, stdout=subprocess.PIPE, text=True
        )
        told = json.loads(done.stdout)
        results += [
            Result(
                "memory",
                f"{name} under fake tensors: model, first step and the step that is weighed",
                round(told["seconds"], 1),
                "s",
                None,
                f"the peak is {told['peak']:,} bytes at {told['where']}",
            ),
            Result(
                "memory",
                f"{name} under fake tensors: the step that is weighed",
                round(told["step"], 1),
                "s",
                most,
            ),
            Result(
                "memory",
                f"{name} under fake tensors: real memory of that process",
                round(told["real"] / 2**30, 2),
                "GiB",
                FAKE_GIB,
            ),
        ]
    return results


def measure_many_steps() -> list[Result]:
    """Measure more and other steps than tests/where_the_memory_goes/test_step.py does."""
    import torch
    from test_step import FAKE_EACH, compare, draw

    torch.set_num_threads(1)
    generator, wrong, misses = random.Random(20_261_121), [], []
    for number in range(MANY_STEPS):
        failures, miss = compare(draw(generator, fake=number % FAKE_EACH == 0))
        wrong += failures
        misses.append(abs(miss))
    for line in wrong:
        print(f"bench:  {line}", file=sys.stderr)
    exact = sum(miss == 0 for miss in misses)
    return [
        Result(
            "memory",
            f"{MANY_STEPS:,} random steps: bytes that differ, or a peak off by 1 % and more",
            len(wrong),
            "",
            0,
            "parameters, gradients, optimizer states and saved activations must be equal",
        ),
        Result(
            "memory",
            f"{MANY_STEPS:,} random steps: largest miss of the peak",
            max(misses),
            "",
            0.01,
            f"{exact:,} peaks are equal",
        ),
    ]
