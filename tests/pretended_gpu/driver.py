"""Runs cases on ranks with pretended GPUs, for tests of another process: a JSON line for each case
on the standard input, a line for its answer on the standard output. PyTorch is imported, and each
number of ranks is started, once for all cases.

Pretended GPUs find tensors of two devices in one operator, memory that nobody wrote, tensors that
are not contiguous, a first message whose peer waits elsewhere, a batch of messages as a group's
first use, ranks that call in different orders, gradients that are read before they have arrived,
and whatever makes the host wait for its GPU. They cannot find what needs real hardware: kernels are
done when their call returns, so a missing wait between two streams is not seen; the caching
allocator, the workspaces of cuBLAS and the flash kernels do not exist; random numbers are those of
the CPU; times mean nothing. `make gpu` on real GPUs stays the measurement."""

import importlib
import json
import os
import sys
from contextlib import ExitStack

LIMIT_SECONDS = 120  # of one case


def answers(lines, answer):
    from pretended.step import Step, disagreements, nccl, torch

    from ranklab.ranks import ranks

    worlds = {}
    with ExitStack() as stack:
        for line in lines:
            n, module, function, args, named = json.loads(line)
            # real ones: then messages go through the host
            shared = torch.cuda.device_count() < n
            if n not in worlds:
                world = ranks(n, device="cuda", announce=False, patience_seconds=30)
                worlds[n] = stack.enter_context(world)
            try:
                case = getattr(importlib.import_module(module), function)
                steps = worlds[n].run(case, *args, limit_seconds=LIMIT_SECONDS, **named)
                steps = [step or Step() for step in steps]
                answer(
                    error="",
                    waits=[{} if shared else step.waits for step in steps],
                    order=disagreements(steps),
                )
            except Exception as error:  # ranks live on
                answer(error=f"{type(error).__name__}: {error}", waits=[], order=[])
            worlds[n].run(nccl.end_groups)  # the next case makes its own


if __name__ == "__main__":
    # what cases and libraries print goes to the standard error, where no answer is
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers(sys.stdin, lambda **what: print(json.dumps(what), file=out, flush=True))
