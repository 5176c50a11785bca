"""Wrong solutions of the assignment on mixed precision: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.mixed_precision import core

pytestmark = pytest.mark.ranks
TOPIC = "mixed_precision"

SOLUTION = text_of(core)


WRONG = {
    "no copies": (
        "small_updates",
        "parity",
        ("nn.Parameter(p.detach().float())", "p"),
        "The fp32 copy must live from step to step.",
    ),
    "a copy made anew in each step": (
        "small_updates",
        "parity",
        ("copy.copy_(torch.where(same, copy, p.float()))", "copy.copy_(p.float())"),
        "It has not moved",
    ),
    "copies that are never rounded back": (
        "steps_on_copies",
        "parity",
        ("                p.copy_(copy)", "                pass"),
        "round them into the parameters after the update",
    ),
    "microbatches replaced": (
        "microbatches_in_fp32",
        "parity",
        ("gradient if copy.grad is None else copy.grad + gradient", "gradient"),
        "Only the last microbatch counts",
    ),
    "gradients that are not taken away": (
        "microbatches_in_fp32",
        "parity",
        ("gradient, p.grad = p.grad.float(), None", "gradient = p.grad.float()"),
        "the parameter still has its gradient",
    ),
    "scaled gradients in the step": (
        "scales_step_by_step",
        "parity",
        ("gradient.mul_(1 / self.factor)", "gradient.mul_(1)"),
        "The gradient was not divided by the scale.",
    ),
    "a row that an overflow does not end": (
        "scales_step_by_step",
        "parity",
        (
            "self.factor, self.good_steps = self.factor * self.backoff, 0",
            "self.factor = self.factor * self.backoff",
        ),
        "an overflow begins a new row",
    ),
    "growth after one step more": (
        "scales_step_by_step",
        "parity",
        ("if self.good_steps == self.interval:", "if self.good_steps > self.interval:"),
        "After growth_interval good steps in a row it doubles.",
    ),
    "unscaled again in step": (
        "clipped_between",
        "parity",
        (
            "        if optimizer not in self.found:\n            self.unscale_(optimizer)\n",
            "        self.found.pop(optimizer, None)\n        self.unscale_(optimizer)\n",
        ),
        "step divided the gradients again",
    ),
    "divided in fp16": (
        "masters_and_a_scale",
        "parity",
        (
            "            optimizer.take_gradients()\n        trained",
            (
                "            for p, _ in optimizer.pairs:\n"
                "                p.grad.mul_(1 / self.factor)\n"
                "            optimizer.take_gradients()\n"
                "            self.found[optimizer] = False\n"
                "            return\n"
                "        trained"
            ),
        ),
        "The gradient became zero in fp16",
    ),
    "gradients that stay": (
        "memory_between_steps",
        "bytes",
        ("            p.grad = copy.grad = None", "            p.grad = None"),
        "Drop gradients in fp32 with zero_grad",
    ),
    "moments in 16 bits": (
        "memory_between_steps",
        "bytes",
        (
            "p.detach().float())",
            "p.detach().clone())",
            "gradient, p.grad = p.grad.float(), None",
            "gradient, p.grad = p.grad, None",
        ),
        "something is not fp32",
    ),
    "a message for each question": (
        "bytes_of_an_agreement",
        "bytes",
        (
            "dist.all_reduce(bad, group=self.group)",
            "dist.all_reduce(torch.zeros(1000))",
        ),
        "one flag, reduced over all ranks, is enough",
    ),
    "ranks that do not agree": (
        "overflow_on_one_rank",
        "faults",
        ("dist.all_reduce(bad, group=self.group)", "pass"),
        "Ranks must agree",
    ),
    "infinity alone": (
        "overflow_on_one_rank",
        "faults",
        ("(~gradient.isfinite()).any()", "gradient.isinf().any()"),
        "after a step with a gradient of nan",
    ),
    "any order": (
        "wrong_order",
        "faults",
        (
            '            raise RuntimeError("unscale_ twice: call update() first.")',
            "            return",
        ),
        "unscale_ a second time should raise RuntimeError, and raised nothing",
    ),
    "an infinite scale": (
        "wrong_scales",
        "faults",
        ("if self.factor * self.growth < 2.0**128:", "if True:"),
        "fp32 ends there",
    ),
    "loads that are lost": (
        "loaded_weights",
        "faults",
        ("torch.where(same, copy, p.float())", "copy"),
        "The load is lost",
    ),
    "zeros for no gradient": (
        "without_gradients",
        "faults",
        (
            "        self.inner.step()",
            "        for _, copy in self.pairs:\n            if copy.grad is None:\n"
            "                copy.grad = torch.zeros_like(copy)\n        self.inner.step()",
        ),
        "that got no gradient",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(2), TOPIC, SOLUTION, WRONG[name])
