"""A script on real ranks over gloo, each weighed by a ledger: for_real.py SCRIPT prints "peak" and
the bytes of the third step, as the rank that torchrun's variables name."""

import runpy
import sys

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ranklab.measure.ledger import Ledger
from ranklab.measure.profile import EnoughSteps

STEPS = 3


def peak(script: str) -> int:
    ledger, begins = Ledger(nn.Module()), []

    def ended(*_):
        begins.append(len(ledger.timeline))
        if len(begins) == STEPS:
            raise EnoughSteps

    handle = register_optimizer_step_post_hook(ended)
    try:
        with ledger:
            runpy.run_path(script, run_name="__main__")
    except EnoughSteps:
        pass
    handle.remove()
    last = ledger.timeline[begins[-2] - 1 : begins[-1]]
    return max(point.bytes.total for point in last)


if __name__ == "__main__":
    print(f"peak {peak(sys.argv[1])}\n", end="", flush=True)  # one write, beside other ranks
