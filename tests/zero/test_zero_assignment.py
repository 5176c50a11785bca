"""The assignment on ZeRO: the references and a learner's solution are right, the skeleton is a list
of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, check_todos, results

pytestmark = pytest.mark.ranks

SOLUTION = """
import torch
import torch.distributed as dist
from torch import nn


def place(group):
    return dist.get_world_size(group), dist.get_rank(group)


def first(group):
    return dist.get_global_rank(group or dist.group.WORLD, 0)


class Bucket:
    def __init__(self, parameters, group):
        self.parameters, self.group = parameters, group
        self.n, me = place(group)
        self.sizes = [p.numel() for p in parameters]
        each = -(-sum(self.sizes) // self.n)
        self.flat = parameters[0].detach().new_zeros(self.n * each)
        for p, part in zip(parameters, self.parts(self.flat)):
            part.copy_(p.detach().reshape(-1))
            p.data = part.view(p.shape)
        dist.broadcast(self.flat, first(group), group=group)
        self.shard = nn.Parameter(self.flat[me * each : (me + 1) * each])

    def parts(self, flat):
        return flat[: sum(self.sizes)].split(self.sizes)

    @torch.no_grad()
    def reduce(self):
        full = torch.zeros_like(self.flat)
        for p, part in zip(self.parameters, self.parts(full)):
            if p.grad is not None:
                part.copy_(p.grad.reshape(-1))
            p.grad = None
        own = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(own, full, group=self.group)
        own /= self.n
        self.shard.grad = own if self.shard.grad is None else self.shard.grad + own

    @torch.no_grad()
    def gather(self):
        dist.all_gather_into_tensor(self.flat, self.shard.detach().clone(), group=self.group)


class ShardedStates:
    def __init__(self, params, optimizer_cls, group=None, *, bucket_bytes=25 << 20, **settings):
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        given = [list(one["params"]) for one in groups]
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes = {bucket_bytes}: at least 1.")
        if not any(p.requires_grad for own in given for p in own):
            raise ValueError("no parameter is trained.")
        self.buckets, shards = [], []
        for one, own in zip(groups, given):
            for p in own:
                if not p.requires_grad:
                    dist.broadcast(p.detach(), first(group), group=group)
            mine = [Bucket(pile, group) for pile in self.piles(own, bucket_bytes)]
            self.buckets += mine
            shards.append({**one, "params": [bucket.shard for bucket in mine]})
        self.inner = optimizer_cls(shards, **settings)
        self.param_groups = self.inner.param_groups

    def piles(self, parameters, bucket_bytes):
        piles, open_ones = [], {}
        for p in parameters:
            if p.requires_grad:
                pile = open_ones.setdefault(p.dtype, [])
                pile.append(p)
                if sum(q.nbytes for q in pile) >= bucket_bytes:
                    piles.append(open_ones.pop(p.dtype))
        return piles + list(open_ones.values())

    def reduce_all(self):
        for bucket in self.buckets:
            bucket.reduce()

    def step(self):
        self.reduce_all()
        self.inner.step()
        for bucket in self.buckets:
            bucket.gather()

    def zero_grad(self):
        for bucket in self.buckets:
            for p in [*bucket.parameters, bucket.shard]:
                p.grad = None


class ShardedGradients(ShardedStates):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.running = False
        for p in self.of:
            p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p):
        if not self.running:
            self.running = True
            self.missing = {bucket: set(bucket.parameters) for bucket in self.buckets}
            self.waiting = list(self.buckets)
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.missing[self.of[p]].discard(p)
        while self.waiting and not self.missing[self.waiting[-1]]:
            self.waiting.pop().reduce()

    def finish(self):
        while self.waiting:
            self.waiting.pop().reduce()
        self.running = False

    def reduce_all(self):
        pass

    def zero_grad(self):
        super().zero_grad()
        self.running = False


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, flat, shard):
        ctx.flat = flat
        ctx.save_for_backward(shard)
        flat.gather()
        return flat.full.data

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors
        flat = ctx.flat
        own = torch.empty_like(flat.shard)
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=flat.group)
        flat.free()
        return None, own / flat.n


class Flat:
    def __init__(self, parameters, group):
        self.group, (self.n, me) = group, place(group)
        self.shapes = [p.shape for p in parameters]
        self.sizes = [p.numel() for p in parameters]
        each = -(-sum(self.sizes) // self.n)
        self.full = parameters[0].detach().new_zeros(self.n * each)
        for p, part in zip(parameters, self.full[: sum(self.sizes)].split(self.sizes)):
            part.copy_(p.detach().reshape(-1))
        dist.broadcast(self.full, first(group), group=group)
        own = self.full[me * each : (me + 1) * each].clone()
        self.shard = nn.Parameter(own, parameters[0].requires_grad)
        self.whole = True
        self.free()

    @torch.no_grad()
    def gather(self):
        if not self.whole:
            self.full.untyped_storage().resize_(self.full.nbytes)
            dist.all_gather_into_tensor(self.full.data, self.shard.detach(), group=self.group)
            self.whole = True

    def free(self):
        self.full.untyped_storage().resize_(0)
        self.whole = False

    def views(self, full):
        parts = full[: sum(self.sizes)].split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]


class Unit:
    def __init__(self, module, sites, group):
        kinds = {}
        for owner, name, p in sites:
            kinds.setdefault((p.dtype, p.requires_grad), {}).setdefault(p, []).append((owner, name))
        self.flats, self.places = [], []
        for number, kind in enumerate(kinds.values()):
            flat = Flat(list(kind), group)
            self.flats.append(flat)
            self.places.append(list(kind.values()))
            for owner, name in sum(kind.values(), []):
                del owner._parameters[name]
            module.register_parameter(f"shard_{number}", flat.shard)
        self.forward = module.forward
        module.forward, module.unit = self.run, self

    def run(self, *inputs, **named):
        for flat, places in zip(self.flats, self.places):
            full = Gather.apply(flat, flat.shard)
            for view, sites in zip(flat.views(full), places):
                for owner, name in sites:
                    owner.__dict__[name] = view
        try:
            output = self.forward(*inputs, **named)
        finally:
            for places in self.places:
                for owner, name in sum(places, []):
                    del owner.__dict__[name]
            self.free()
        if output.requires_grad:
            output.register_hook(self.enter)
        return output

    def enter(self, gradient):
        for flat in self.flats:
            flat.gather()
        torch.autograd.Variable._execution_engine.queue_callback(self.free)

    def free(self):
        for flat in self.flats:
            flat.free()


def fully_shard(module, units=(), group=None):
    units = [*units, module]
    if any(unit not in set(module.modules()) for unit in units):
        raise ValueError("a unit is not inside the module.")
    if any(hasattr(child, "unit") for child in module.modules()):
        raise ValueError("the module is sharded already.")
    module.names = [name for name, _ in module.named_parameters()]
    around, sites = {}, {}

    def visit(child, unit):
        unit = child if child in units else unit
        for name, p in child._parameters.items():
            if p is not None:
                around.setdefault(p, set()).add(unit)
                sites.setdefault(p, []).append((child, name, p))
        for grandchild in child.children():
            visit(grandchild, unit)

    visit(module, module)
    by_name = {p: name for name, p in module.named_parameters()}
    module.owners = []
    for unit in dict.fromkeys(units):
        own = [
            (p, sites[p]) for p in sites
            if (around[p] == {unit}) or (unit is module and len(around[p]) > 1)
        ]
        if own:
            made = Unit(unit, [site for _, found in own for site in found], group)
            made.names = {(o, name): by_name[p] for p, found in own for o, name, _ in found}
            module.owners.append(made)
    return module


def whole_parameters(module):
    found = {}
    for unit in module.owners:
        for flat, places in zip(unit.flats, unit.places):
            flat.gather()
            for view, sites in zip(flat.views(flat.full), places):
                found[unit.names[sites[0]]] = view.detach().clone()
            flat.free()
    return {name: found[name] for name in module.names}
"""


@pytest.mark.parametrize("source", [None, SOLUTION], ids=["the reference", "another solution"])
def test_what_is_right_passes(worlds, source):
    """Must catch: a trial that refuses a right solution, such as one that pads its buckets, or one
    that wants the reference's calls and not only their bytes."""
    found = results(worlds(4), "zero", source)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, and one that raises a traceback."""
    check_todos(worlds(4), "zero", parts=4)


SHARDED = "        dist.reduce_scatter_tensor(own, full, group=self.group)\n"
OWN = "full.view(self.n, -1)[dist.get_rank(self.group)]"
WRONG = {
    "a sum": (
        "a_step_of_ShardedStates",
        "parity",
        ("own /= self.n", "own /= 1"),
        "That is a step with the sum over 4 ranks: divide by 4.",
    ),
    "nothing gathered": (
        "a_step_of_ShardedStates",
        "parity",
        ("            bucket.gather()", "            pass"),
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
            "                    dist.broadcast(p.detach(), first(group), group=group)",
            20 * " " + "pass",
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
        ("optimizer_cls(shards", "optimizer_cls(sum((one['params'] for one in shards), [])"),
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
            "        self.param_groups = self.inner.param_groups\n"
            "        self.buckets[0].parameters[0].register_post_accumulate_grad_hook(\n"
            "            lambda p: self.buckets[0].reduce()\n        )",
        ),
        "gradients wait, whole, for step()",
    ),
    "stage 2 in step": (
        "buckets_leave_early",
        "bytes",
        (
            "            p.register_post_accumulate_grad_hook(self.arrived)",
            "            pass",
            "    def reduce_all(self):\n        pass\n",
            "",
        ),
        "they are reduced in backward, and not in step()",
    ),
    "all buckets at the end": (
        "buckets_leave_early",
        "bytes",
        (
            "        while self.waiting and not self.missing[self.waiting[-1]]:\n"
            "            self.waiting.pop().reduce()\n",
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
            "self.flat[me * each : (me + 1) * each])",
            "self.flat[me * each : (me + 1) * each].clone())",
        ),
        "The load is lost",
    ),
    "the state of a backward that raised": (
        "after_an_error",
        "faults",
        (
            "        super().zero_grad()\n        self.running = False\n",
            "        super().zero_grad()\n",
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
    "a sum": ("a_step", "parity", ("own / flat.n", "own"), "the sum over 4 ranks: divide by 4."),
    "values of this rank": (
        "outputs",
        "parity",
        (
            "            dist.all_gather_into_tensor(self.full.data, self.shard.detach(),"
            " group=self.group)\n",
            "            dist.all_gather_into_tensor(self.full.data, self.shard.detach(),"
            " group=self.group)\n            self.full.data.mul_(-1)\n",
        ),
        "the output of the first forward",
    ),
    "names of a unit": (
        "whole_again",
        "parity",
        ("found[name] for name in module.names", "found[name] for name in found if '0' in name"),
        "should have the names of the plain module's named_parameters",
    ),
    "the whole model beside its shards": (
        "parameters_of_a_shard",
        "bytes",
        ("        self.whole = True\n        self.free()", "        self.whole = True"),
        "The module's own parameters must go.",
    ),
    "units that stay whole after forward": (
        "parameters_of_a_shard",
        "bytes",
        ("            self.free()\n        if output", "            pass\n        if output"),
        "Autograd keeps the gathered parameters unless their storage is emptied",
    ),
    "units that are freed at the end": (
        "one_unit_at_a_time",
        "bytes",
        ("        flat.free()\n        return None", "        return None"),
        "and free it after its backward",
    ),
    "an all-reduce": (
        "bytes_of_a_step",
        "bytes",
        (
            "        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=flat.group)\n",
            "        gradient = gradient.clone()\n"
            "        dist.all_reduce(gradient, group=flat.group)\n"
            "        own = gradient.view(flat.n, -1)[dist.get_rank(flat.group)].clone()\n",
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
        ("        torch.autograd.Variable._execution_engine.queue_callback(self.free)\n", ""),
        "so something else must free it when backward is over",
    ),
    "shards that autograd does not know": (
        "written_shards",
        "faults",
        ("        ctx.save_for_backward(shard)\n", "", "        ctx.saved_tensors\n", ""),
        "keep the shards by save_for_backward",
    ),
    "sharded twice": (
        "wrong_units",
        "faults",
        ('if any(hasattr(child, "unit") for child in module.modules()):', "if False:"),
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
