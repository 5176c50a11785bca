"""Parameters that are not used, microbatches, errors, wrong arguments."""

from coursekit.exercises.on_a_rank import Wrong, demand, groups, refuses
from coursekit.exercises.trap_model import Stumble, Trap, plain_model, stumble, trap_loss
from shardlab.measure.communication import CommunicationLog

from .given import ASSIGNMENT, DDP, compare, misread, replicas_of


@ASSIGNMENT.trial("faults", DDP)
def used_on_one_rank(mine):
    """a parameter that one rank uses: the others bring zeros, and nobody waits"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        for number in range(2):
            model.zero_grad(set_to_none=True)
            trap_loss(model, here.me, number, some_rank=1).backward()
            plain = plain_model(0, range(here.n), number, some_rank=1)
            compare(f"rank {here.me} of 3, of which rank 1 uses all", module, plain, {})


@ASSIGNMENT.trial("faults", DDP)
def used_on_no_rank(mine):
    """a parameter that no rank uses keeps no gradient"""
    for here in groups(2):
        model, module = replicas_of(mine, here)
        trap_loss(model, here.me).backward()
        compare(f"rank {here.me} of 2", module, plain_model(0, range(2)), {})


@ASSIGNMENT.trial("faults", DDP)
def microbatches(mine):
    """no_sync sends nothing, and the next backward sends the sum of both"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        with CommunicationLog() as log, model.no_sync():
            trap_loss(model, here.me, 0).backward()
        demand(
            not log.messages, f"backward inside no_sync sends {len(log.messages)} messages, not 0."
        )
        trap_loss(model, here.me, 1).backward()
        plain = Trap(0)
        for number in range(2):
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
        second = plain_model(0, range(3), 1)
        compare(
            f"rank {here.me} of 3 after a backward in no_sync and one outside",
            module,
            plain,
            {"The microbatch inside no_sync is lost.": second},
        )


@ASSIGNMENT.trial("faults", DDP)
def gradients_add_up(mine):
    """two backwards without zero_grad add up, as on one rank"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        plain = Trap(0)
        for number in range(2):
            trap_loss(model, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
        last = plain_model(0, range(3), 1)
        compare(
            f"rank {here.me} of 3 after two backwards",
            module,
            plain,
            {"The first backward is lost.": last},
        )


@ASSIGNMENT.trial("faults", DDP)
def after_an_error(mine):
    """a backward that raised halfway leaves nothing behind"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        try:
            trap_loss(model, here.me, watch=stumble).backward()
        except Stumble:
            pass
        else:
            raise Wrong("an exception inside backward did not come out of backward().")
        model.zero_grad(set_to_none=True)
        trap_loss(model, here.me, 1).backward()
        compare(
            f"rank {here.me} of 3, in the backward after one that raised",
            module,
            plain_model(0, range(3), 1),
            misread(here, 1),
        )


@ASSIGNMENT.trial("faults", DDP)
def wrong_arguments(mine):
    """bucket_bytes of 0, a module without trained parameters"""
    frozen = Trap(0).requires_grad_(False)
    cases = [(f"bucket_bytes = {value}", Trap(0), value) for value in (0, -5, 2.5)]
    for what, module, value in (*cases, ("a module with no trained parameter", frozen, 100)):
        refuses(
            f"{DDP} with {what}",
            mine.DistributedDataParallel,
            module,
            value,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )
