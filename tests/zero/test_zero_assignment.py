"""Wrong solutions of the assignment on ZeRO: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.zero import core, core_stage3

pytestmark = pytest.mark.ranks

SOLUTION = text_of(core, core_stage3)


SHARDED = "        reduce_scatter_single(own, full, group=self.group)\n"
OWN = "full.view(self.n, -1)[dist.get_rank(self.group)]"
WRONG = {
    "a sum": (
        "a_step_of_ShardedStates",
        "parity",
        ("full /= self.n", "full /= 1"),
        "That is a step with the sum over 4 ranks: divide by 4.",
    ),
    "nothing gathered": (
        "a_step_of_ShardedStates",
        "parity",
        ("            bucket.all_gather()", "            pass"),
        "all-gather hands the shards to all",
    ),
    "own gradients": (
        "a_step_of_ShardedStates",
        "parity",
        (SHARDED, f"        own.copy_({OWN} * self.n)\n"),
        "Each element is updated with the gradient of one rank",
    ),
    "ranks that begin differently": (
        "values_of_rank_0_of_ShardedGradients",
        "parity",
        (
            "                    dist.broadcast(p.detach(), first_rank(group), group=group)",
            "                    pass",
        ),
        "The ranks begin differently.",
    ),
    "param_groups of its own": (
        "groups_of_parameters_of_ShardedStates",
        "parity",
        ("= self.inner.param_groups", "= [dict(one) for one in self.inner.param_groups]"),
        "param_groups are those of the optimizer inside",
    ),
    "one group": (
        "groups_of_parameters_of_ShardedStates",
        "parity",
        ("optimizer_cls(groups", "optimizer_cls(sum((one['params'] for one in groups), [])"),
        "hand on those of the optimizer inside",
    ),
    "states of all parameters": (
        "states_of_a_shard_of_ShardedStates",
        "bytes",
        (
            "        self.param_groups =",
            "        self.moments = [b.flat.clone() for b in self.buckets + self.buckets]\n"
            "        self.param_groups =",
        ),
        "Let the optimizer inside know this rank's shards alone",
    ),
    "an all-reduce": (
        "bytes_of_a_step_of_ShardedStates",
        "bytes",
        (SHARDED, f"        dist.all_reduce(full, group=self.group)\n        own.copy_({OWN})\n"),
        "An all-reduce gives every rank sums that it does not need",
    ),
    "stage 1 in backward": (
        "nothing_leaves_in_backward",
        "bytes",
        (
            "        self.param_groups = self.inner.param_groups",
            (
                "        self.param_groups = self.inner.param_groups\n"
                "        self.buckets[0].parameters[0].register_post_accumulate_grad_hook(\n"
                "            lambda p: self.buckets[0].reduce_scatter()\n"
                "        )"
            ),
        ),
        "gradients wait, whole, for step()",
    ),
    "stage 2 in step": (
        "buckets_leave_early",
        "bytes",
        (
            "            p.register_post_accumulate_grad_hook(self.gradient_arrives)",
            "            pass",
            '    def reduce_gradients(self):\n        """Nothing is left to reduce in step()."""\n',
            "",
        ),
        "they are reduced in backward, and not in step()",
    ),
    "all buckets at the end": (
        "buckets_leave_early",
        "bytes",
        (
            (
                "        while self.waiting and not self.missing[self.waiting[-1]]:\n"
                "            self.waiting.pop().reduce_scatter()\n"
            ),
            "",
        ),
        "one that is complete is reduced at once",
    ),
    "gradients that stay": (
        "gradients_of_a_shard",
        "bytes",
        (
            "part.copy_(p.grad.reshape(-1))\n            p.grad = None\n",
            "part.copy_(p.grad.reshape(-1))\n",
        ),
        "Set .grad of the model's parameters to None",
    ),
    "a gradient that must be there": (
        "used_on_one_rank_of_ShardedGradients",
        "faults",
        (
            "            if p.grad is not None:\n                part",
            "            if True:\n                part",
        ),
        "NoneType",
    ),
    "the last microbatch alone": (
        "microbatches_of_ShardedGradients",
        "faults",
        ("own if self.shard.grad is None else self.shard.grad + own", "own"),
        "The first backward is lost.",
    ),
    "a shard that is a copy": (
        "loaded_weights_of_ShardedStates",
        "faults",
        (
            "self.flat[me * chunk : (me + 1) * chunk])",
            "self.flat[me * chunk : (me + 1) * chunk].clone())",
        ),
        "The load is lost",
    ),
    "the state of a backward that raised": (
        "after_an_error",
        "faults",
        (
            "        super().zero_grad()\n        self.missing = None",
            "        super().zero_grad()\n        pass",
        ),
        "after a backward that raised",
    ),
    "any bucket_bytes": (
        "wrong_arguments_of_ShardedStates",
        "faults",
        ("if bucket_bytes < 1:", "if False:"),
        "bucket_bytes = 0 should raise ValueError, and raised nothing",
    ),
}
WRONG_UNITS = {
    "a sum": (
        "a_step",
        "parity",
        ("gradient.contiguous() / flat.n", "gradient.contiguous()"),
        "the sum over 4 ranks: divide by 4.",
    ),
    "values of this rank": (
        "outputs",
        "parity",
        (
            "            all_gather_single(self.full.data, self.shard.detach(),"
            " group=self.group)\n",
            "            all_gather_single(self.full.data, self.shard.detach(),"
            " group=self.group)\n            self.full.data.mul_(-1)\n",
        ),
        "the output of the first forward",
    ),
    "names of a unit": (
        "whole_again",
        "parity",
        (
            "found[name] for name in dict.fromkeys(module.plain_names.values())",
            "found[name] for name in found if '0' in name",
        ),
        "should have the names of the plain module's named_parameters",
    ),
    "the whole model beside its shards": (
        "parameters_of_a_shard",
        "bytes",
        ("  # [E/n]\n        self.free()\n", "  # [E/n]\n        self.whole = True\n"),
        "The module's own parameters must go.",
    ),
    "units that stay whole after forward": (
        "parameters_of_a_shard",
        "bytes",
        (
            "        self.free()\n        if isinstance(output",
            "        pass\n        if isinstance(output",
        ),
        "Autograd keeps the gathered parameters unless their storage is emptied",
    ),
    "units that are freed at the end": (
        "one_unit_at_a_time",
        "bytes",
        ("        flat.free()  # autograd", "        pass  # autograd"),
        "and free it after its backward",
    ),
    "an all-reduce": (
        "bytes_of_a_step",
        "bytes",
        (
            (
                "        reduce_scatter_single(own, gradient.contiguous() /"
                " flat.n, group=flat.group)\n"
            ),
            (
                "        gradient = gradient / flat.n\n"
                "        dist.all_reduce(gradient, group=flat.group)\n"
                "        own = gradient.view(flat.n, -1)[dist.get_rank(flat.group)].clone()\n"
            ),
        ),
        "An all-reduce gives every rank gradients that it does not need",
    ),
    "trained and frozen in one": (
        "frozen_units",
        "faults",
        ("kinds.setdefault((p.dtype, p.requires_grad), {})", "kinds.setdefault(p.dtype, {})"),
        "a flat tensor is of trained parameters or of frozen ones",
    ),
    "frozen units that stay whole": (
        "frozen_units",
        "faults",
        ("        at_end_of_backward(self.free)\n", ""),
        "so something else must free it when backward is over",
    ),
    "shards that autograd does not know": (
        "written_shards",
        "faults",
        (
            "        ctx.save_for_backward(shard)\n",
            "",
            "        _ = ctx.saved_tensors  #",
            "        #",
        ),
        "keep the shards by save_for_backward",
    ),
    "sharded twice": (
        "wrong_units",
        "faults",
        ('if any(hasattr(child, "zero_unit") for child in module.modules()):', "if False:"),
        "sharded already should raise ValueError",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "zero", SOLUTION, WRONG[name])


@pytest.mark.parametrize("name", WRONG_UNITS)
def test_a_misconception_about_units_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "zero", SOLUTION, WRONG_UNITS[name])
