"""ZeRO stage 1, hardened: the core's three moves of a step, with parameter groups and refusals.

    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

Make the optimizer after the model has its final device and dtype. All ranks begin with rank 0's
parameters; the caller hands out buffers, and frozen parameters that are not given (zero.shard
does). All ranks run backward equally often, each with at least one parameter in it. A missing
gradient counts as zeros, as in the flat parameters of PyTorch's first FSDP: momentum and decay move
such a parameter. Changes of gradients between backward and step are for `.grad` of the parameters
in param_groups, which are shards, after reduce_gradients(): the gradient of a model's parameter is
this rank's own, as under no_sync() of PyTorch's DDP, or, in stage 2, gone: a loop over gradients
that are not None changes nothing there, and a new one is refused.
"""

from collections.abc import Iterable
from inspect import getgeneratorlocals, isgenerator

import torch
from torch import Tensor, nn

from ...common.agreement import agree, fact
from ...common.backward import BackwardListener
from ...common.before_step import check_elementwise, note, tried
from ...common.shards import CannotShard, misses_experts
from .. import core
from .arriving import UnderWay
from .buckets import BUCKET_BYTES, Bucket, into_buckets
from .flat import Group, best_collectives


class ShardedOptimizer(core.ShardedStates, BackwardListener, torch.optim.Optimizer):
    """Any optimizer that updates each element by itself, on this rank's shard of the parameters, or
    groups of them, that torch.optim takes. The other arguments are those of zero.shard, which says
    what `prefetch` promises. Its param_groups are those of the optimizer inside, as learning-rate
    schedulers ask."""

    def __init__(
        self,
        params,
        optimizer_cls,
        group=None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        collectives=None,
        prefetch: bool = False,
        **settings,
    ):
        if bucket_bytes < 1:
            raise CannotShard(f"bucket_bytes = {bucket_bytes}: it must be at least 1.")
        refuse_sets(params)  # of which torch makes a list
        self.optimizer_cls, self.settings, self.inner = optimizer_cls, settings, None
        self.group, self.bucket_bytes, self.collectives = group, bucket_bytes, collectives
        self.prefetch, self.late = prefetch, UnderWay()
        self.buckets: list[Bucket] = []
        self.given, self.stepped = [], False
        torch.optim.Optimizer.__init__(self, params, settings)  # calls add_param_group
        self.inner = optimizer_cls(self.param_groups, **settings)  # as MasterWeights
        tried.add(self.inner)
        self.serve(self.buckets)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.defaults = self.inner.defaults

    def add_param_group(self, param_group: dict):
        """Shard the group's parameters. The optimizer inside updates the shards."""
        named = named_list(param_group["params"])
        check_parameters(named, [p for b in self.buckets for p in b.parameters], self.group)
        settings = {key: value for key, value in param_group.items() if key != "params"}
        check_elementwise(self.optimizer_cls, {**self.settings, **settings}, named[0][1])
        device = named[0][1].device
        self.collectives = best_collectives(device, self.group, self.collectives)
        parameters = [parameter for _, parameter in named]
        messages = self.collectives, self.late, self.prefetch
        buckets = into_buckets(parameters, self.group, self.bucket_bytes, *messages)
        self.buckets += buckets
        note(parameters, self)
        self.given += [(name, p, p.requires_grad) for name, p in named]
        shards = {**settings, "params": [shard for bucket in buckets for shard in bucket.shards]}
        add = self.param_groups.append if self.inner is None else self.inner.add_param_group
        add(shards)
        self.serve(buckets)

    def serve(self, buckets: list[Bucket]):
        if hasattr(self.inner, "serve"):
            self.inner.serve(buckets)

    def reduce_gradients(self):
        """Average the gradients that have not been averaged yet: clipping may have done so."""
        if any(bucket.has_gradients for bucket in self.buckets):
            self.check_zeroed()
            super().reduce_gradients()
        self.late.arrive()

    def arrive(self):
        """Wait for all messages on their way."""
        self.late.arrive()
        for bucket in self.buckets:
            bucket.gathering.arrive()

    @torch.no_grad()
    def step(self):
        """Reduce, update, gather."""
        self.arrive()
        self.check()
        self.reduce_gradients()
        self.check_reduced()
        super().step()
        self.stepped = True

    def zero_grad(self, set_to_none: bool = True):
        self.stepped = False
        self.late.arrive()  # of a backward that raised
        self.listen_last(parameter for bucket in self.buckets for parameter in bucket.parameters)
        for bucket in self.buckets:
            for parameter in (*bucket.parameters, *bucket.shards):
                if parameter.grad is not None:
                    parameter.grad = None if set_to_none else parameter.grad.zero_()
        self.inner.zero_grad(set_to_none)

    # --- refusals ---------------------------------------------------------------------------------

    def check(self):
        for bucket in self.buckets:
            bucket.check()
            bucket.pass_writes_on()
        for name, parameter, trained in self.given:
            if parameter.requires_grad != trained:
                raise CannotShard(
                    f"{name} was {'frozen' if trained else 'unfrozen'} after the sharded optimizer"
                    " was made: make the optimizer anew."
                )
        if self.taken_by is not None:
            raise CannotShard(
                f"a newer {self.taken_by} averages gradients of these parameters: use one of the"
                " two."
            )

    def check_zeroed(self):
        if self.stepped:
            raise CannotShard(
                "the shards still have the gradients of the step before: call the sharded"
                " optimizer's zero_grad(); model.zero_grad() does not reach the shards."
            )

    def check_reduced(self):
        updated = [p for group in self.param_groups for p in group["params"]]
        shards = [shard for bucket in self.buckets for shard in bucket.shards]
        if all(tensor.grad is None for tensor in (*shards, *updated)):
            raise CannotShard(
                "step() without a gradient on this rank: before a step every rank runs backward"
                " through at least one parameter that the optimizer was given (and that"
                " load_state_dict(assign=True) has not replaced)."
            )

    def why_not_clip(self, parameter: nn.Parameter) -> str:
        """Why PyTorch's functions cannot clip this parameter."""
        return (
            "PyTorch's clipping knows this rank's gradients alone, and these are averaged"
            " by a sharded optimizer: call gradient_clipping.clip_gradients(optimizer, max_norm)."
        )

    # --- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """The state of this rank's shards. shardlab.saving writes the shards of all ranks to disk,
        and restores them on another number of ranks."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict):
        self.arrive()
        check_state(state_dict, self.inner)
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def __getstate__(self):
        raise CannotShard(
            "a sharded optimizer is not copied or pickled: its state_dict() is, and shardlab.saving"
            " saves it."
        )


# --- refusals, before anything is moved or sent ---------------------------------------------------


def refuse_sets(parameters):
    """Raise TypeError for a set, or for a generator that goes through one."""
    while isgenerator(parameters):
        parameters = getgeneratorlocals(parameters).get(".0")
    if isinstance(parameters, (set, frozenset, type(iter(set())))):
        raise TypeError(
            "the parameters are a set, whose order differs from rank to rank and from run to run:"
            " give a list."
        )


def named_list(parameters: Tensor | Iterable) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of what PyTorch's optimizers take, with a number for a missing name."""
    refuse_sets(parameters)
    (group,) = torch.optim.SGD([{"params": parameters}]).param_groups
    numbers = [f"parameter {k}" for k in range(len(group["params"]))]
    return list(zip(group.get("param_names", numbers), group["params"]))


def check_parameters(
    named: list[tuple[str, nn.Parameter]], others: list[nn.Parameter], group: Group
):
    """Raise CannotShard on all ranks or on none, before anything is moved. `others` are in the
    optimizer already."""
    facts = [fact(name, parameter) for name, parameter in named]
    rule = "all ranks shard the same parameters, in the same order"
    complaint = complaint_of_group(named, others) or misses_experts(named, group)
    agree(facts, group, CannotShard, rule, complaint)


def complaint_of_group(named: list[tuple[str, nn.Parameter]], others: list[nn.Parameter]) -> str:
    """The problem of this rank, or an empty string."""
    if not any(parameter.requires_grad for _, parameter in named):
        return (
            f"a group of {len(named)} parameters, none of them trained: there is nothing to shard."
        )
    known = set(others)
    for name, parameter in named:
        if parameter.is_meta:
            return (
                f"{name} is on the meta device: fill the model (to_empty and its initialisation)"
                " before the sharded optimizer is made."
            )
        if parameter in known:
            return (
                f"{name} of shape {list(parameter.shape)} is given twice: each belongs to one"
                " group, once."
            )
        known.add(parameter)
    return ""


def check_state(state_dict: dict, inner: torch.optim.Optimizer):
    """Each tensor of a shard's state is a number or has the shard's size."""
    shards = [shard for group in inner.param_groups for shard in group["params"]]
    for number, state in state_dict["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != shards[number].shape:
                raise CannotShard(
                    f"{name} has {value.numel():,} elements, this rank's shard"
                    f" {shards[number].numel():,}: the state is another rank's, or of another"
                    " number of ranks; saving.resume takes any number."
                )
