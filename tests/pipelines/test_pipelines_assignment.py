"""The assignment on pipelines: the references and a learner's solution are right, the skeleton is a
list of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, check_todos, results

pytestmark = pytest.mark.ranks

SOLUTION = """
from collections import deque
import re
import torch
import torch.distributed as dist
from torch import nn


def check_sizes(*sizes):
    if min(sizes) < 1:
        raise ValueError(f"sizes {sizes}: at least 1.")


def merged(forwards, backwards, warm):
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards):
        order += [forward, backward]
    return order + backwards[len(forwards) - len(forwards[:warm]) :]


def gpipe(ranks, microbatches):
    check_sizes(ranks, microbatches)
    return [
        [f"{r}{kind}{i}" for kind in "FB" for i in range(microbatches)] for r in range(ranks)
    ]


def one_f_one_b(ranks, microbatches):
    check_sizes(ranks, microbatches)
    return [
        merged(
            [f"{r}F{i}" for i in range(microbatches)],
            [f"{r}B{i}" for i in range(microbatches)],
            ranks - 1 - r,
        )
        for r in range(ranks)
    ]


def interleaved(ranks, microbatches, stages_per_rank=2):
    check_sizes(ranks, microbatches, stages_per_rank)
    if microbatches % ranks:
        raise ValueError("microbatches must be a multiple of ranks.")
    lists = []
    for r in range(ranks):
        forwards, backwards = [], []
        for begin in range(0, microbatches, ranks):
            for chunk in range(stages_per_rank):
                for i in range(begin, begin + ranks):
                    forwards.append(f"{chunk * ranks + r}F{i}")
                    backwards.append(f"{(stages_per_rank - 1 - chunk) * ranks + r}B{i}")
        warm = 2 * (ranks - 1 - r) + (stages_per_rank - 1) * ranks
        lists.append(merged(forwards, backwards, warm))
    return lists


def parsed(schedule):
    found = []
    for own in schedule:
        found.append([])
        for word in own:
            match = re.fullmatch(r"(\\d+)([FB])(\\d+)", word)
            if not match:
                raise ValueError(f"{word} is no action.")
            found[-1].append((int(match[1]), match[2], int(match[3])))
    return found


def target_of(action, last):
    stage, kind, i = action
    to = stage + 1 if kind == "F" else stage - 1
    return (to, kind, i) if 0 <= to <= last else None


def check_schedule(schedule, microbatches):
    plan, home = parsed(schedule), {}
    if not plan or not all(plan):
        raise ValueError("a rank has no action.")
    for rank, own in enumerate(plan):
        for stage, _, _ in own:
            if home.setdefault(stage, rank) != rank:
                raise ValueError(f"stage {stage} is on two ranks.")
    last = max(home)
    wanted = sorted((s, k, i) for s in range(last + 1) for k in "BF" for i in range(microbatches))
    if sorted(action for own in plan for action in own) != wanted:
        raise ValueError("not every stage does F and B of every microbatch once.")
    sent, taken = {}, {}
    for rank, own in enumerate(plan):
        for stage, kind, i in own:
            to = target_of((stage, kind, i), last)
            if to:
                sent.setdefault((rank, home[to[0]], kind), []).append(to)
            source = stage - 1 if kind == "F" else stage + 1
            if 0 <= source <= last:
                taken.setdefault((home[source], rank, kind), []).append((stage, kind, i))
    if sent != taken:
        raise ValueError("messages are taken in another order than they are sent.")
    done, at = set(), [0] * len(plan)
    going = True
    while going:
        going = False
        for rank, own in enumerate(plan):
            while at[rank] < len(own):
                stage, kind, i = own[at[rank]]
                needs = [(stage, "F", i), (stage + 1, "B", i)]
                if kind == "F":
                    needs = [(stage - 1, "F", i)]
                if any(0 <= need[0] <= last and need not in done for need in needs):
                    break
                done.add(own[at[rank]])
                at[rank] += 1
                going = True
    if at != [len(own) for own in plan]:
        raise ValueError("ranks wait for each other forever.")


class Pipeline(nn.Module):
    def __init__(self, layers, schedule, example, loss, group=None):
        super().__init__()
        self.plan = parsed(schedule)
        self.m = 1 + max(i for own in self.plan for _, _, i in own)
        check_schedule(schedule, self.m)
        self.group, self.loss, self.me = group, loss, dist.get_rank(group)
        self.peers = dist.get_process_group_ranks(group or dist.group.WORLD)
        if len(self.plan) != len(self.peers):
            raise ValueError(f"a schedule of {len(self.plan)} ranks on {len(self.peers)}.")
        self.home = {s: rank for rank, own in enumerate(self.plan) for s, _, _ in own}
        self.last = max(self.home)
        if len(layers) <= self.last:
            raise ValueError(f"{len(layers)} layers for {self.last + 1} stages.")
        each, more = divmod(len(layers), self.last + 1)
        self.stages, self.outputs, holders, begin = nn.ModuleDict(), [], {}, 0
        x = example[: len(example) // self.m]
        for stage in range(self.last + 1):
            own = nn.Sequential(*layers[begin : begin + each + (stage < more)])
            begin += len(own)
            with torch.no_grad():
                x = own(x)
            self.outputs.append((x.shape, x.dtype))
            for p in own.parameters():
                holders.setdefault(p, set()).add(self.home[stage])
            if self.home[stage] == self.me:
                self.stages[str(stage)] = own
        self.tied = [
            (p if self.me in ranks else None, p.shape, p.dtype)
            for p, ranks in holders.items()
            if len(ranks) > 1 and p.requires_grad
        ]

    def tag(self, stage, kind, i):
        return (stage * self.m + i) * 2 + (kind == "B")

    def send(self, action, tensor):
        to = target_of(action, self.last)
        if to is None:
            return None
        if self.home[to[0]] == self.me:
            self.inbox[to] = tensor
            return None
        peer = self.peers[self.home[to[0]]]
        tensor = tensor.contiguous()
        return tensor, dist.isend(tensor, peer, group=self.group, tag=self.tag(*to))

    def receive(self, action):
        stage, kind, i = action
        if action in self.inbox:
            return self.inbox.pop(action)
        source = stage - 1 if kind == "F" else stage + 1
        shape, dtype = self.outputs[min(source, stage)]
        tensor = torch.empty(shape, dtype=dtype)
        peer = self.peers[self.home[source]]
        dist.recv(tensor, peer, group=self.group, tag=self.tag(*action))
        return tensor

    def step(self, batch, targets):
        if len(batch) % self.m or len(batch) != len(targets):
            raise ValueError(f"{len(batch)} sequences, {len(targets)} targets, m = {self.m}.")
        self.inbox, self.kept, self.leaving, losses = {}, {}, deque(), []
        xs, ys = batch.chunk(self.m), targets.chunk(self.m)
        for action in self.plan[self.me]:
            stage, kind, i = action
            if kind == "F":
                x = self.receive(action).detach().requires_grad_() if stage else xs[i]
                y = self.stages[str(stage)](x)
                if stage == self.last:
                    losses.append(self.loss(y, ys[i]))
                    y = losses[-1] / self.m
                    losses[-1] = losses[-1].detach()
                self.kept[stage, i] = x, y, self.send(action, y.detach())
            else:
                dy = None if stage == self.last else self.receive(action)
                x, y, sent = self.kept.pop((stage, i))
                if sent:
                    sent[1].wait()
                if y.requires_grad:
                    torch.autograd.backward(y, dy)
                if stage:
                    dx = torch.zeros_like(x) if x.grad is None else x.grad
                    self.leaving.append(self.send(action, dx))
                    if len(self.leaving) > 1:
                        self.wait()
                del x, y, dy, sent
        while self.leaving:
            self.wait()
        for p, shape, dtype in self.tied:
            total = torch.zeros(shape, dtype=dtype) if p is None or p.grad is None else p.grad
            dist.all_reduce(total, group=self.group)
            if p is not None:
                p.grad = total
        return torch.stack(losses) if losses else torch.empty(0)

    def wait(self):
        sent = self.leaving.popleft()
        if sent:
            sent[1].wait()
"""


@pytest.mark.parametrize("source", [None, SOLUTION], ids=["the reference", "another solution"])
def test_what_is_right_passes(worlds, source):
    """Must catch: a trial that refuses a right solution, such as one that numbers its messages by
    tags, or one that sums tied gradients by another collective."""
    found = results(worlds(4), "pipelines", source)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, and one that raises a traceback."""
    check_todos(worlds(4), "pipelines", parts=5)


WRONG = {
    "no backward of the last microbatches": (
        "lists_that_run_of_one_f_one_b",
        "parity",
        ("return order + backwards[len(forwards) - len(forwards[:warm]) :]", "return order"),
        "it must do F and B, or F, I and W",
    ),
    "backwards in the order of forwards": (
        "lists_that_run_of_interleaved",
        "parity",
        ('f"{(stages_per_rank - 1 - chunk) * ranks + r}B{i}"', 'f"{chunk * ranks + r}B{i}"'),
        "this schedule cannot go on",
    ),
    "neighbouring stages on a rank": (
        "lists_that_run_of_interleaved",
        "parity",
        (
            "{chunk * ranks + r}F",
            "{r * stages_per_rank + chunk}F",
            "{(stages_per_rank - 1 - chunk) * ranks + r}B",
            "{(r + 1) * stages_per_rank - 1 - chunk}B",
        ),
        "interleaved(2, 4, 2): this schedule cannot go on",
    ),
    "GPipe that is 1F1B": (
        "forwards_first",
        "parity",
        (
            '[f"{r}{kind}{i}" for kind in "FB" for i in range(microbatches)] for r in range(ranks)',
            "*one_f_one_b(ranks, microbatches)",
        ),
        "GPipe does all forwards, then all backwards",
    ),
    "the same warm-up on all ranks": (
        "microbatches_held_at_once_of_one_f_one_b",
        "bytes",
        ("            ranks - 1 - r,\n", "            ranks - 1,\n"),
        "holds 4 microbatches at once, and 3 are enough",
    ),
    "a warm-up that is too short": (
        "idle_time_of_one_f_one_b",
        "bytes",
        ("            ranks - 1 - r,\n", "            min(1, ranks - 1 - r),\n"),
        "are enough: rank",
    ),
    "microbatches that are no multiple": (
        "sizes_that_cannot_be_of_interleaved",
        "faults",
        ("    if microbatches % ranks:", "    if False:"),
        "interleaved(4, 6, 2) should raise ValueError, and raised nothing",
    ),
    "a check without a simulation": (
        "what_cannot_run",
        "faults",
        ("    if at != [len(own) for own in plan]:", "    if False:"),
        "a backward before its forward should raise ValueError, and raised nothing",
    ),
    "a check that wants microbatch 0 first": (
        "what_can_run",
        "parity",
        (
            "    done, at = set(), [0] * len(plan)",
            "    if any(own[0][2] for own in plan):\n        raise ValueError('begin with 0')\n"
            "    done, at = set(), [0] * len(plan)",
        ),
        "check_schedule refuses one that begins with microbatch 1, which can run",
    ),
}
WRONG_PIPELINES = {
    "more layers on the last stages": (
        "layers_of_a_rank",
        "parity",
        ("(stage < more)", "(stage > self.last - more)"),
        "the first ones have one more",
    ),
    "a sum over microbatches": (
        "every_gradient",
        "parity",
        ("y = losses[-1] / self.m", "y = losses[-1]"),
        "That is the sum over 4 microbatches: divide each loss by 4.",
    ),
    "the last microbatch alone": (
        "every_gradient",
        "parity",
        (
            "                if y.requires_grad:\n",
            "                self.stages.zero_grad()\n                if y.requires_grad:\n",
        ),
        "That is the last microbatch alone: gradients add up.",
    ),
    "losses that are divided": (
        "losses",
        "parity",
        ("losses[-1] = losses[-1].detach()", "losses[-1] = y.detach()"),
        "They are divided by 4: return them as they are.",
    ),
    "a schedule of its own": (
        "runs_the_list",
        "parity",
        ("in self.plan[self.me]:", "in sorted(self.plan[self.me], key=lambda one: one[1] == 'B'):"),
        "step runs the list that it was given, action by action",
    ),
    "whole batches": (
        "messages",
        "bytes",
        (
            "        tensor = tensor.contiguous()\n        return tensor,",
            "        tensor = tensor.double().contiguous()\n        return tensor,",
            "tensor = torch.empty(shape, dtype=dtype)",
            "tensor = torch.empty(shape, dtype=torch.double)",
            "group=self.group, tag=self.tag(*action))\n        return tensor",
            "group=self.group, tag=self.tag(*action))\n        return tensor.to(dtype)",
        ),
        "the output of a microbatch alone, in its own dtype",
    ),
    "a shape before each message": (
        "messages",
        "bytes",
        (
            "        tensor = tensor.contiguous()\n",
            "        tensor, shape = tensor.contiguous(), torch.tensor(tensor.shape)\n"
            "        work = dist.isend(shape, peer, group=self.group, tag=99 + self.tag(*to))\n"
            "        self.leaving.append((shape, work))\n",
            "        dist.recv(tensor, peer",
            "        dist.recv(torch.tensor(shape), peer, group=self.group, tag=99 +"
            " self.tag(*action))\n"
            "        dist.recv(tensor, peer",
        ),
        "Shapes are known from the example",
    ),
    "activations that stay": (
        "microbatches_held",
        "bytes",
        ("self.kept.pop((stage, i))", "self.kept[stage, i]"),
        "Drop what a microbatch has kept",
    ),
    "the whole model on each rank": (
        "layers_of_others",
        "bytes",
        ("        self.tied = [", "        self.all = list(layers)\n        self.tied = ["),
        "of other ranks: the model is cut so that no rank has all of it",
    ),
    "tied weights that drift apart": (
        "tied_weights",
        "faults",
        ("            dist.all_reduce(total, group=self.group)\n", ""),
        "the ranks that have a tied weight add up their gradients",
    ),
    "frozen stages": (
        "frozen_first_stages",
        "faults",
        ("                if y.requires_grad:\n", "                if True:\n"),
        "does not require grad",
    ),
    "gradients that are replaced": (
        "steps_add_up",
        "faults",
        (
            "        self.inbox, self.kept,",
            "        self.zero_grad()\n        self.inbox, self.kept,",
        ),
        "The first step is lost.",
    ),
    "any batch": (
        "wrong_arguments",
        "faults",
        ("if len(batch) % self.m or len(batch) != len(targets):", "if len(batch) % self.m:"),
        "8 sequences with 4 targets should raise ValueError",
    ),
    "what an error leaves": (
        "after_an_error",
        "faults",
        (
            "        self.inbox, self.kept, self.leaving, losses = {}, {}, deque(), []\n",
            "        if hasattr(self, 'kept') and self.kept:\n"
            "            raise RuntimeError('a step is not over')\n"
            "        self.inbox, self.kept, self.leaving, losses = {}, {}, deque(), []\n"
            "        self.kept[-1] = None\n",
        ),
        "a step is not over",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "pipelines", SOLUTION, WRONG[name])


@pytest.mark.parametrize("name", WRONG_PIPELINES)
def test_a_misconception_about_running_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "pipelines", SOLUTION, WRONG_PIPELINES[name])


def test_sends_that_wait_for_each_other(worlds):
    """Must catch: a trial that waits forever where two ranks send before either receives."""
    change = (
        "return tensor, dist.isend(tensor, peer, group=self.group, tag=self.tag(*to))",
        "return dist.send(tensor, peer, group=self.group, tag=self.tag(*to))",
    )
    wrong = ("every_gradient", "parity", change, "wait")
    check_sentence(worlds(4), "pipelines", SOLUTION, wrong, trial_seconds=3.0)
