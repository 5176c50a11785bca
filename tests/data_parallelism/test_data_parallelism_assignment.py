"""The assignment on data parallelism: the reference and a learner's solution are right, the
skeleton is a list of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, check_todos, results

pytestmark = pytest.mark.ranks

SOLUTION = """
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def make_buckets(parameters, bucket_bytes):
    buckets, open_ones = [], {}
    for p in parameters:
        bucket = open_ones.setdefault(p.dtype, [])
        bucket.append(p)
        if sum(q.nbytes for q in bucket) >= bucket_bytes:
            buckets.append(open_ones.pop(p.dtype))
    buckets.extend(open_ones.values())
    return buckets


class DistributedDataParallel(nn.Module):
    def __init__(self, module, bucket_bytes=25 << 20, group=None):
        super().__init__()
        if not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"bucket_bytes = {bucket_bytes}: a whole number of at least 1.")
        self.trained = [p for p in module.parameters() if p.requires_grad]
        if not self.trained:
            raise ValueError("no parameter is trained.")
        self.module, self.group, self.n = module, group, dist.get_world_size(group)
        first = dist.get_global_rank(group or dist.group.WORLD, 0)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), first, group=group)
        self.buckets = make_buckets(reversed(self.trained), bucket_bytes)
        self.where = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.syncing, self.running = True, False
        for p in self.trained:
            p.register_post_accumulate_grad_hook(self.arrived)

    def forward(self, *inputs, **named):
        self.running = False
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self):
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def arrived(self, p):
        if not self.syncing:
            return
        if not self.running:
            self.running = True
            self.missing = [set(bucket) for bucket in self.buckets]
            self.sent = []
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.missing[self.where[p]].discard(p)
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self.send()

    @torch.no_grad()
    def send(self):
        bucket = self.buckets[len(self.sent)]
        flat = torch.cat(
            [self.gradient(p).reshape(-1) / self.n for p in bucket]
            + [bucket[0].new_tensor([p.grad is not None for p in bucket])]
        )
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        self.sent.append((bucket, flat, work))

    def gradient(self, p):
        return torch.zeros_like(p) if p.grad is None else p.grad

    @torch.no_grad()
    def finish(self):
        while len(self.sent) < len(self.buckets):
            self.send()
        for bucket, flat, work in self.sent:
            work.wait()
            parts = flat.split([p.numel() for p in bucket] + [len(bucket)])
            for p, part, used in zip(bucket, parts, parts[-1].tolist()):
                p.grad = part.view_as(p) if used else None
        self.sent, self.running = [], False
"""


@pytest.mark.parametrize("source", [None, SOLUTION], ids=["the reference", "another solution"])
def test_what_is_right_passes(worlds, source):
    """Must catch: a trial that refuses a right solution, such as one that wants the reference's
    calls and not only its bytes."""
    found = results(worlds(4), "data_parallelism", source)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, and one that raises a traceback."""
    check_todos(worlds(4), "data_parallelism", parts=2)


WRONG = {
    "a sum": ("every_gradient", "parity", ("/ self.n", "/ 1"), "That is the sum over 4 ranks"),
    "divided twice": (
        "every_gradient",
        "parity",
        ("p.grad = part.view_as(p) if", "p.grad = part.view_as(p) / self.n if"),
        "once more",
    ),
    "nobody waits, or sends": (
        "every_gradient",
        "parity",
        ("        while len(self.sent) < len(self.buckets):\n            self.send()\n", ""),
        "the gradient of",
    ),
    "ranks that begin differently": (
        "values_of_rank_0",
        "parity",
        ("dist.broadcast(tensor.detach(), first, group=group)", "pass"),
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
        ("    buckets.extend(open_ones.values())\n", ""),
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
            "self.buckets = make_buckets(reversed(self.trained), bucket_bytes)",
            "self.buckets = [[p] for p in reversed(self.trained)]",
        ),
        "each bucket is one flat message",
    ),
    "all buckets at the end": (
        "buckets_leave_early",
        "bytes",
        (
            "        while len(self.sent) < len(self.buckets) and not"
            " self.missing[len(self.sent)]:\n            self.send()\n",
            "",
        ),
        "a complete bucket leaves at once",
    ),
    "parameters sent in forward": (
        "buckets_leave_early",
        "bytes",
        (
            "        self.running = False\n        return",
            "        self.running = False\n        for p in self.trained:\n"
            "            dist.broadcast(p.detach(), 0, group=self.group)\n        return",
        ),
        "forward sends 8 messages",
    ),
    "buckets beside gradients": (
        "gradients_are_held_once",
        "bytes",
        (
            "p.grad = part.view_as(p) if used else None",
            "p.grad = part.view_as(p).clone() if used else None",
            "        self.sent, self.running = [], False",
            "        self.running = False",
        ),
        "make .grad a view of its bucket",
    ),
    "an unused parameter is waited for": (
        "used_on_one_rank",
        "faults",
        ("torch.zeros_like(p) if p.grad is None else p.grad", "p.grad"),
        "NoneType",
    ),
    "no flags": (
        "used_on_no_rank",
        "faults",
        ("p.grad = part.view_as(p) if used else None", "p.grad = part.view_as(p)"),
        "no rank has used it",
    ),
    "no_sync sends": (
        "microbatches",
        "faults",
        ("        self.syncing = False\n        try", "        try"),
        "backward inside no_sync sends",
    ),
    "the state of a backward that raised": (
        "after_an_error",
        "faults",
        ("        self.running = False\n        return", "        return"),
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
