"""Wrong solutions of the assignment on pipelines: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.pipelines import core, schedules

pytestmark = pytest.mark.ranks

ADAPTER = """
from trials_of_pipelines.trials_given import actions_of, in_words
from shardlab.pipelines.schedule_checks import check_order

gpipe, one_f_one_b, interleaved = map(in_words, (gpipe, one_f_one_b, interleaved))


def check_schedule(words, microbatches):
    plan = actions_of(words)
    validate_schedule(plan, microbatches)
    check_order_of_messages(plan)


class PipelineOfWords(Pipeline):
    def __init__(self, layers, schedule, example, loss, group=None):
        super().__init__(layers, actions_of(schedule), example, loss, group)


Pipeline = PipelineOfWords
"""
SOLUTION = text_of(schedules) + text_of(core) + ADAPTER


WRONG = {
    "no backward of the last microbatches": (
        "lists_that_run_of_one_f_one_b",
        "parity",
        (
            "        yield next(backwards)\n    yield from backwards\n",
            "        yield next(backwards)\n",
        ),
        "it must do F and B, or F, I and W",
    ),
    "backwards in the order of forwards": (
        "lists_that_run_of_interleaved",
        "parity",
        ("chunks[::-1]", "chunks"),
        "this schedule cannot go on",
    ),
    "neighbouring stages on a rank": (
        "lists_that_run_of_interleaved",
        "parity",
        (
            "Action(chunk * ranks + rank, kind, microbatch)",
            "Action(rank * stages_per_rank + chunk, kind, microbatch)",
        ),
        "interleaved(2, 4, 2): this schedule cannot go on",
    ),
    "GPipe that is 1F1B": (
        "forwards_first",
        "parity",
        ("lambda rank: microbatches)", "lambda rank: ranks - rank - 1)"),
        "GPipe does all forwards, then all backwards",
    ),
    "the same warm-up on all ranks": (
        "microbatches_held_at_once_of_one_f_one_b",
        "bytes",
        ("lambda rank: ranks - rank - 1)", "lambda rank: ranks - 1)"),
        "holds 4 microbatches at once, and 3 are enough",
    ),
    "a warm-up that is too short": (
        "idle_time_of_one_f_one_b",
        "bytes",
        ("lambda rank: ranks - rank - 1)", "lambda rank: min(1, ranks - rank - 1))"),
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
        (
            "validate_schedule(plan, microbatches)\n    check",
            "check_order(plan, microbatches)\n    check",
        ),
        "two ranks that wait for each other should raise ValueError, and raised nothing",
    ),
    "a check that wants microbatch 0 first": (
        "what_can_run",
        "parity",
        (
            "    validate_schedule(plan, microbatches)\n",
            (
                "    validate_schedule(plan, microbatches)\n"
                "    if any(own[0].microbatch for own in plan):\n"
                "        raise ValueError('begin with 0')\n"
            ),
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
        ("            y = y / self.m\n", ""),
        "That is the sum over 4 microbatches: divide each loss by 4.",
    ),
    "the last microbatch alone": (
        "every_gradient",
        "parity",
        (
            "        if y.requires_grad:  #",
            ("        self.stages.zero_grad()\n        if y.requires_grad:  #"),
        ),
        "That is the last microbatch alone: gradients add up.",
    ),
    "losses that are divided": (
        "losses",
        "parity",
        (
            ("            self.losses.append(y.detach())\n            y = y / self.m\n"),
            ("            y = y / self.m\n            self.losses.append(y.detach())\n"),
        ),
        "They are divided by 4: return them as they are.",
    ),
    "a schedule of its own": (
        "runs_the_list",
        "parity",
        (
            "for action in self.actions:",
            ("for action in sorted(self.actions, key=lambda one: one.kind is Kind.BACKWARD):"),
        ),
        "step runs the list that it was given, action by action",
    ),
    "whole batches": (
        "messages",
        "bytes",
        (
            (
                "tensor.contiguous()\n"
                "        return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))\n"
            ),
            (
                "tensor.double().contiguous()\n"
                "        return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))\n"
            ),
            ("torch.empty(shape, dtype=dtype, device=self.device), self.home"),
            ("torch.empty(shape, dtype=torch.double, device=self.device), self.home"),
            ("        dist.recv(tensor, self.ranks[rank], group=group)\n        return tensor\n"),
            (
                "        dist.recv(tensor, self.ranks[rank], group=group)\n"
                "        return tensor.to(dtype)\n"
            ),
        ),
        "the output of a microbatch alone, in its own dtype",
    ),
    "a shape before each message": (
        "messages",
        "bytes",
        (
            ("        return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))\n"),
            (
                "        shape = torch.tensor(tensor.shape)\n"
                "        sent = dist.isend(shape, self.ranks[rank], group=group)\n"
                "        self.leaving.append(Sent(shape, sent))\n"
                "        return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))\n"
            ),
            "        dist.recv(tensor, self.ranks[rank], group=group)\n",
            (
                "        dist.recv(torch.tensor(shape), self.ranks[rank], group=group)\n"
                "        dist.recv(tensor, self.ranks[rank], group=group)\n"
            ),
        ),
        "Shapes are known from the example",
    ),
    "activations that stay": (
        "microbatches_held",
        "bytes",
        ("self.held.pop((stage, i))", "self.held[stage, i]"),
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
        ("        if y.requires_grad:  #", "        if True:  #"),
        "does not require grad",
    ),
    "gradients that are replaced": (
        "steps_add_up",
        "faults",
        (
            "        self.inbox, self.held,",
            "        self.zero_grad()\n        self.inbox, self.held,",
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
            ("        self.inbox, self.held, self.leaving, self.losses = {}, {}, deque(), []\n"),
            (
                "        if hasattr(self, 'held') and self.held:\n"
                "            raise RuntimeError('a step is not over')\n"
                "        self.inbox, self.held, self.leaving, self.losses = {}, {}, deque(), []\n"
                "        self.held[-1] = None\n"
            ),
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
        "return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))",
        "return dist.send(tensor, self.ranks[rank], group=group)",
    )
    wrong = ("every_gradient", "parity", change, "wait")
    check_sentence(worlds(4), "pipelines", SOLUTION, wrong, trial_seconds=3.0)
