"""Stages 1 and 2: optimizers that keep the states of a shard."""

from coursekit.exercises.on_a_rank import demand, expect, groups
from coursekit.exercises.trap_model import Trap, trap_loss

from .given import ASSIGNMENT, CLOSE
from .steps import (
    BOTH,
    SETTINGS,
    SGD,
    SGD_SETTINGS,
    SMALL_BUCKET_BYTES,
    begun,
    compare_step,
    zeros_for_none,
)


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def values_of_rank_0(kind, name):
    """all ranks begin with the values of the group's rank 0, frozen parameters too"""
    for here in groups(4, 3, 2):
        module = begun(here)
        kind(module.parameters(), SGD, here.group, lr=0.1)
        own = Trap(here.me)
        for key, right in Trap(0).named_parameters():
            expect(
                f"{key} after {name}(...) on rank {here.me} of {here.n}",
                module.get_parameter(key),
                right.detach(),
                {"The ranks begin differently.": own.get_parameter(key).detach()},
                close=0,
            )


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def a_step(kind, name):
    """parameters after a step of SGD, on 2, 3 and 4 ranks, with small buckets and with one"""
    for here in groups(4, 3, 2):
        for bucket_bytes in (1 << 20, SMALL_BUCKET_BYTES):
            module = begun(here)
            settings = dict(bucket_bytes=bucket_bytes, **SGD_SETTINGS)
            optimizer = kind(module.parameters(), SGD, here.group, **settings)
            trap_loss(module, here.me).backward()
            optimizer.step()
            what = f"rank {here.me} of {here.n} after a step of {name}"
            compare_step(f"{what}, bucket_bytes = {bucket_bytes}", module, here)


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def three_steps(kind, name):
    """parameters after three steps of SGD with momentum and of AdamW are the plain model's"""
    for here in groups(3):
        for of, settings in SETTINGS:
            module, plain = begun(here), Trap(0)
            optimizer = kind(module.parameters(), of, here.group, **settings)
            ours = of(plain.parameters(), **settings)
            for number in range(3):
                for each in (optimizer, ours):
                    each.zero_grad()
                trap_loss(module, here.me, number).backward()
                (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
                zeros_for_none(plain)
                optimizer.step()
                ours.step()
                for key, right in plain.named_parameters():
                    expect(
                        f"{key} after step {number + 1} of {name} with {of.__name__}",
                        module.get_parameter(key),
                        right.detach(),
                        close=CLOSE,
                    )


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def groups_of_parameters(kind, name):
    """two groups with settings of their own, and a learning rate that changes between steps"""
    for here in groups(2):
        module, plain = begun(here), Trap(0)

        def given(model):
            layers = [model.first, model.hidden, model.some, model.never]
            weights = [{"params": [layer.weight for layer in layers], "weight_decay": 0.5}]
            return [*weights, {"params": [layer.bias for layer in layers], "lr": 0.3}]

        module.load_state_dict(plain.state_dict())  # the frozen layer is not given
        optimizer = kind(given(module), SGD, here.group, lr=0.1)
        ours = SGD(given(plain), lr=0.1)
        for number in range(2):
            for each in (optimizer, ours):
                each.zero_grad()
            trap_loss(module, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(2)) / 2).backward()
            zeros_for_none(plain)
            before = {key: p.detach().clone() for key, p in plain.named_parameters()}
            for each in (optimizer, ours):
                demand(
                    len(each.param_groups) == 2,
                    f"{name} of two groups of parameters has {len(each.param_groups)} param_groups:"
                    " hand on those of the optimizer inside.",
                )
                each.param_groups[1]["lr"] *= 1 + number
                each.step()
            for key, right in plain.named_parameters():
                once = before[key] + (right.detach() - before[key]) / (1 + number)
                expect(
                    f"{key} after step {number + 1} with two groups of parameters",
                    module.get_parameter(key),
                    right.detach(),
                    {
                        "The learning rate of before: param_groups are those of the optimizer"
                        " inside, so that schedulers reach it.": once
                    },
                    CLOSE,
                )
