"""Stages 1 and 2: layers that are not used, microbatches, loads, errors, wrong arguments."""

import torch
from torch import nn

from coursekit.exercises.on_a_rank import Wrong, closest, expect, groups, refuses
from coursekit.exercises.trap_model import Stumble, Trap, inputs_of, stumble, trap_loss

from .given import ASSIGNMENT, CLOSE, FOUR_BYTES
from .steps import BOTH, SGD, SGD_SETTINGS, SMALL_BUCKET_BYTES, begun, compare_step


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def used_on_one_rank(kind, name):
    """a layer that one rank uses: the others bring zeros, and nobody waits"""
    for here in groups(3):
        module = begun(here)
        settings = dict(bucket_bytes=SMALL_BUCKET_BYTES, **SGD_SETTINGS)
        optimizer = kind(module.parameters(), SGD, here.group, **settings)
        trap_loss(module, here.me, some_rank=1).backward()
        optimizer.step()
        what = f"rank {here.me} of 3 after a step in which rank 1 alone uses all layers"
        compare_step(what, module, here, some_rank=1)


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def microbatches(kind, name):
    """the gradients of two backwards add up, and zero_grad forgets them"""
    for here in groups(3):
        module, plain = begun(here), Trap(0)
        optimizer = kind(module.parameters(), SGD, here.group, lr=0.1)
        ours = SGD(plain.parameters(), lr=0.1)
        for step in range(2):
            lone = Trap(0)
            for number in (0, 1):
                trap_loss(module, here.me, number).backward()
                (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
            lone.load_state_dict(plain.state_dict())
            (sum(trap_loss(lone, rank, 1) for rank in range(3)) / 3).backward()
            SGD(lone.parameters(), lr=0.1).step()
            optimizer.step()
            ours.step()
            for key, right in plain.named_parameters():
                expect(
                    f"{key} after step {step + 1} of two backwards each",
                    module.get_parameter(key),
                    right.detach(),
                    {"The first backward is lost.": lone.get_parameter(key).detach()},
                    CLOSE,
                )
            for each in (optimizer, ours):
                each.zero_grad()


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def loaded_weights(kind, name):
    """weights that are loaded between steps are where the next step begins"""
    for here in groups(2):
        module, plain = begun(here), Trap(0)
        optimizer = kind(module.parameters(), SGD, here.group, lr=0.1)
        trap_loss(module, here.me).backward()
        optimizer.step()
        optimizer.zero_grad()
        stale = {key: p.detach().clone() for key, p in module.named_parameters()}
        module.load_state_dict(Trap(5).state_dict())
        plain.load_state_dict(Trap(5).state_dict())
        trap_loss(module, here.me, 1).backward()
        (sum(trap_loss(plain, rank, 1) for rank in range(2)) / 2).backward()
        optimizer.step()
        for key, right in plain.named_parameters():
            right = right.detach()
            if plain.get_parameter(key).grad is not None:
                right = right - 0.1 * plain.get_parameter(key).grad
            got = module.get_parameter(key)
            expect(
                f"{key} after a step from loaded weights",
                got,
                right,
                {
                    "The load is lost: the shard is a copy that remembers what was there before;"
                    " make it a view of the parameters' memory, or fill it in step().": (
                        closest(got, [stale[key], stale[key] + right - Trap(5).get_parameter(key)])
                    )
                },
                CLOSE,
            )


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def fewer_elements_than_ranks(kind, name):
    """buckets of one or two elements on four ranks"""
    for here in groups(4):
        weights = [nn.Parameter(torch.full((size,), 1.0 + here.me)) for size in (1, 2, 5)]
        optimizer = kind(weights, SGD, here.group, lr=1.0, bucket_bytes=FOUR_BYTES)
        for weight in weights:
            (weight * (here.me + 1.0)).sum().backward()
        optimizer.step()
        for weight in weights:
            expect(
                f"{len(weight)} weights of 1 after a step with gradients 1, 2, 3 and 4",
                weight,
                torch.full((len(weight),), 1 - 2.5),
            )


@ASSIGNMENT.trial("faults", "ShardedGradients")
def after_an_error(mine):
    """stage 2: a backward that raised halfway leaves nothing behind, after zero_grad"""
    for here in groups(3):
        module = begun(here)
        settings = dict(bucket_bytes=SMALL_BUCKET_BYTES, **SGD_SETTINGS)
        optimizer = mine.ShardedGradients(module.parameters(), SGD, here.group, **settings)
        try:
            (module(inputs_of(here.me, 1), watch=stumble) ** 2).mean().backward()
        except Stumble:
            pass
        else:
            raise Wrong("an exception inside backward did not come out of backward().")
        optimizer.zero_grad()
        trap_loss(module, here.me).backward()
        optimizer.step()
        compare_step(f"rank {here.me} of 3 after a backward that raised", module, here)


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def wrong_arguments(kind, name):
    """nothing to train, bucket_bytes of 0"""
    frozen = list(Trap(0).requires_grad_(False).parameters())
    for what, parameters, bucket_bytes in (
        ("no trained parameter", frozen, 100),
        ("no parameter", [], 100),
        ("bucket_bytes = 0", list(Trap(0).parameters()), 0),
        ("bucket_bytes = -1", list(Trap(0).parameters()), -1),
    ):
        refuses(
            f"{name} with {what}",
            kind,
            parameters,
            SGD,
            lr=0.1,
            bucket_bytes=bucket_bytes,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )
