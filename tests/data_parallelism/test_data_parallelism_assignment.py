"""Wrong solutions of the assignment on data parallelism: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.data_parallel import core

pytestmark = pytest.mark.ranks

SOLUTION = text_of(core)


WRONG = {
    "a sum": (
        "every_gradient",
        "parity",
        (
            "torch.div(gradient, n, out=part)",
            "torch.div(gradient, 1, out=part)",
        ),
        "That is the sum over 4 ranks",
    ),
    "divided twice": (
        "every_gradient",
        "parity",
        ("        self.work.wait()\n", "        self.work.wait()\n        self.flat /= 4\n"),
        "once more",
    ),
    "nobody waits, or sends": (
        "every_gradient",
        "parity",
        (
            (
                "        while len(self.sent) < len(self.buckets):  # a gradient did not arrive\n"
                "            self.send_next()\n"
            ),
            "",
        ),
        "the gradient of",
    ),
    "ranks that begin differently": (
        "values_of_rank_0",
        "parity",
        ("dist.broadcast(tensor.detach(), first_rank(group), group=group)", "pass"),
        "The ranks begin differently",
    ),
    "buffers forgotten": (
        "values_of_rank_0",
        "parity",
        ("[*module.parameters(), *module.buffers()]", "module.parameters()"),
        "buffer shift",
    ),
    "the last bucket lost": (
        "buckets_of_parameters",
        "parity",
        ("return buckets + list(open_ones.values())", "return buckets"),
        "the last bucket may be small",
    ),
    "dtypes mixed": (
        "buckets_of_parameters",
        "parity",
        (
            "open_ones.setdefault(p.dtype, [])",
            "open_ones.setdefault(0, [])",
            "open_ones.pop(p.dtype)",
            "open_ones.pop(0)",
        ),
        "a message has one dtype",
    ),
    "a message for each parameter": (
        "messages_by_bucket",
        "bytes",
        (
            "self.buckets = make_buckets(reversed(trained), bucket_bytes)",
            "self.buckets = [[p] for p in reversed(trained)]",
        ),
        "each bucket is one flat message",
    ),
    "all buckets at the end": (
        "buckets_leave_early",
        "bytes",
        (
            (
                "        while len(self.sent) < len(self.buckets) and not"
                " self.missing[len(self.sent)]:\n"
                "            self.send_next()\n"
            ),
            "",
        ),
        "a complete bucket leaves at once",
    ),
    "parameters sent in forward": (
        "buckets_leave_early",
        "bytes",
        (
            "        return self.module(*inputs",
            (
                "        for p in self.bucket_of:\n"
                "            dist.broadcast(p.detach(), 0, group=self.group)\n"
                "        return self.module(*inputs"
            ),
        ),
        "forward sends 8 messages",
    ),
    "buckets beside gradients": (
        "gradients_are_held_once",
        "bytes",
        (
            "        self.work.wait()\n",
            (
                "        self.work.wait()\n"
                "        for p in self.parameters:\n"
                "            p.grad = p.grad.clone()\n"
            ),
            "        sizes = [p.numel() for p in parameters]\n",
            (
                "        self.parameters = parameters\n"
                "        sizes = [p.numel() for p in parameters]\n"
            ),
            "        self.sent, self.begun = [], False",
            "        self.begun = False",
        ),
        "make .grad a view of its bucket",
    ),
    "an unused parameter is waited for": (
        "used_on_one_rank",
        "faults",
        (
            "            if p.grad is None:\n                part",
            "            if False:\n                part",
        ),
        "NoneType",
    ),
    "no flags": (
        "used_on_no_rank",
        "faults",
        ("            if not used[number]:", "            if False:"),
        "no rank has used it",
    ),
    "no_sync sends": (
        "microbatches",
        "faults",
        ("        self.sending = False\n", "        pass\n"),
        "backward inside no_sync sends",
    ),
    "the state of a backward that raised": (
        "after_an_error",
        "faults",
        ("        self.begun = False  # a backward that raised has no end\n", ""),
        "",
    ),
    "any bucket_bytes": (
        "wrong_arguments",
        "faults",
        ("if not isinstance(bucket_bytes, int) or bucket_bytes < 1:", "if False:"),
        "should raise ValueError",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "data_parallelism", SOLUTION, WRONG[name])
