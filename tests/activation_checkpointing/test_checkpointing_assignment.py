"""Wrong solutions of the assignment on activation checkpointing: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.recompute import core

pytestmark = pytest.mark.ranks
TOPIC = "activation_checkpointing"

SOLUTION = text_of(core)


FUNCTION, HOOKS = "checkpoint_by_function", "checkpoint"
STATE = ("            torch.set_rng_state(self.random)\n", "")
WRONG = {
    "other masks, by function": (f"masks_of_{FUNCTION}", "parity", STATE, "Without dropout it is"),
    "other masks, by hooks": (f"masks_of_{HOOKS}", "parity", STATE, "Without dropout it is"),
    "random numbers not put back": (
        f"masks_of_{HOOKS}",
        "parity",
        ("torch.random.fork_rng(self.gpus)", "torch.enable_grad()"),
        "put back the state that you found",
    ),
    "no autocast": (
        f"lower_precision_of_{FUNCTION}",
        "parity",
        ("torch.is_autocast_enabled(kind), caches", "False, caches"),
        "the second run needs the settings of the first",
    ),
    "the second run without a graph": (
        f"bits_of_{FUNCTION}",
        "parity",
        (
            "        with torch.enable_grad(), ctx.surroundings.again():",
            "        with ctx.surroundings.again():",
        ),
        "three blocks",
    ),
    "arguments without gradients": (
        f"bits_of_{FUNCTION}",
        "parity",
        ("return tensor.detach().requires_grad_(tensor.requires_grad)", "return tensor.detach()"),
        "the gradient of the argument is None",
    ),
    "the plain function": (
        f"kept_between_of_{HOOKS}",
        "bytes",
        ("    if not torch.is_grad_enabled():", "    if True:"),
        "The activations of the function live on.",
    ),
    "activations that stay": (
        f"kept_between_of_{HOOKS}",
        "bytes",
        (
            "class Surroundings:",
            "KEPT = []\n\n\nclass Surroundings:",
            "        self.made += 1\n",
            "        KEPT.append(self.again[self.made])\n        self.made += 1\n",
        ),
        "drop what the second run has made",
    ),
    "a run for each activation": (
        f"runs_of_the_function_of_{HOOKS}",
        "bytes",
        (
            "        if number not in self.again:\n            self.run_again()",
            "        self.run_again()",
        ),
        "once is enough for all activations",
    ),
    "no anchor": (
        f"data_in_front_of_{FUNCTION}",
        "faults",
        (
            "RunTwice.apply(function, torch.empty(0, requires_grad=True)",
            "RunTwice.apply(function, None",
        ),
        "they would never be trained",
    ),
    "arguments kept by hand": (
        f"written_arguments_of_{FUNCTION}",
        "faults",
        (
            "ctx.save_for_backward(*arguments.tensors)",
            "ctx.own = arguments.tensors",
            "again(ctx.saved_tensors)",
            "again(ctx.own)",
        ),
        "by save_for_backward",
    ),
    "no finally": (
        f"exceptions_of_{HOOKS}",
        "faults",
        (
            "class Surroundings:",
            (
                "@contextmanager\n"
                "def fork(gpus):\n"
                "    found = torch.get_rng_state()\n"
                "    yield\n"
                "    torch.set_rng_state(found)\n"
                "\n"
                "\n"
                "class Surroundings:"
            ),
            "torch.random.fork_rng(self.gpus)",
            "fork(self.gpus)",
        ),
        "use try and finally, or fork_rng",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(1), TOPIC, SOLUTION, WRONG[name])
