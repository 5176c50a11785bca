"""The entry to all stages: for labs, tests and races."""

from collections.abc import Iterable

import torch
from torch import nn

from ... import data_parallel
from ...common.agreement import agree, changes_rows, fact, hand_out
from ...common.backward import owners
from ...common.optimizer_checks import check_elementwise, replaced
from ...common.shards import OF_CORE, CannotShard, would_mix
from ...common.torch_clip_and_scale import note, watch_steps
from .. import core, core_stage3
from . import stage1, stage2
from .arriving import late_last
from .buckets import Bucket
from .checks import check_arguments
from .offload import cpu_offload
from .stage3 import fully_shard

OPTIONS = (
    {"bucket_bytes"},
    {"bucket_bytes", "collectives", "offload", "prefetch"},
    {"bucket_bytes", "collectives", "offload", "prefetch"},
    {"units", "collectives", "offload", "compute_dtype", "device", "prefetch"},
)
OF_CORES = {"bucket_bytes", "units"}


def shard(
    model: nn.Module,
    optimizer_cls: type,
    *,
    stage: int,
    group=None,
    hardened: bool = True,
    units: Iterable[nn.Module] | None = None,
    bucket_bytes: int | None = None,
    collectives=None,
    offload: bool = False,
    compute_dtype: torch.dtype | None = None,
    device=None,
    prefetch: bool = False,
    **settings,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """(the model to call, its optimizer) under a stage; stage 0 is data parallelism.

    optimizer_cls   torch.optim.AdamW, ...; **settings are its arguments
    group           the process group whose ranks share the model; by default the world
    hardened        by default the classes of hardened/, for any model that can be sharded; False
                    gives the core, the code that the chapter prints: for plain models, and in
                    stages 1 and 2 without clipping, loss scaling and saving
    units           stage 3: see fully_shard; by default the model's children, of a list its members
    bucket_bytes    stages 0 to 2: of parameters that travel together

    and the hardened classes alone:

    collectives     stages 1 to 3: see flat.py
    offload         stages 1 to 3: optimizer states in host memory, in stage 3 the shards as well
    compute_dtype   stage 3: see fully_shard
    device          stage 3: see fully_shard
    prefetch        stages 1 to 3: messages travel while the model computes. Stage 3: see
                    fully_shard; the last gradients travel while step() of an optimizer of PyTorch
                    updates the other shards. Stages 1 and 2: updated parameters under the next
                    forward; and stage 1 averages in each backward, as stage 2 does, except for
                    those within optimizer.no_sync(): all microbatches of a step but the last. An
                    alias from before step() reads too early, silently: p.detach(), p.data, a view,
                    p.numpy(), a kept state_dict(); so does torch.tensor(p). Read after a forward,
                    from a new state_dict(), or after optimizer.arrive(). See arriving.py

    All ranks begin with rank 0's parameters and buffers. From stage 1 on, a norm of gradients that
    you make by hand is this rank's alone, and in stage 2 parameters have no gradients after
    backward: nothing raises; gradient_clipping.clip_gradients(optimizer, ...) knows all. Raises
    CannotShard for an unknown stage or an option that the stage does not have, TypeError for an
    optimizer that looks at shapes.
    """
    if stage not in range(len(OPTIONS)):
        raise CannotShard(f"stage = {stage!r}: there are 0, 1, 2 and 3.")
    options = dict(
        units=units,
        bucket_bytes=bucket_bytes,
        collectives=collectives,
        offload=offload or None,
        compute_dtype=compute_dtype,
        device=device,
        prefetch=prefetch or None,
    )
    options = {name: value for name, value in options.items() if value is not None}
    known = OPTIONS[stage] if hardened else OPTIONS[stage] & OF_CORES
    if others := sorted(set(options) - known):
        of = f"stage {stage}" if hardened else f"the core of stage {stage}"
        raise CannotShard(f"{' and '.join(others)}: {of} has {', '.join(sorted(known))}.")
    check_arguments(optimizer_cls, options.get("bucket_bytes", 1))
    options.pop("offload", None)
    first = next(model.parameters(), None)
    if stage and first is None:
        raise CannotShard(f"{type(model).__name__} has no parameters: there is nothing to shard.")
    if stage == 3:
        like = torch.empty(0, device=device or first.device)
        check_elementwise(optimizer_cls, settings, like)
        options["units"] = list(default_units(model)) if units is None else list(units)
    if not hardened:
        return core_of(stage, model, optimizer_cls, group, options, settings)
    if stage == 0:
        model = data_parallel.DistributedDataParallel(model, group=group, **options)
        return model, optimizer_cls(model.parameters(), **settings)
    if stage < 3:
        return model, sharded_optimizer(
            model,
            cpu_offload(optimizer_cls) if offload else optimizer_cls,
            (stage2 if stage == 2 or prefetch else stage1).ShardedOptimizer,
            group,
            **options,
            **settings,
        )
    fully_shard(model, group=group, shard_device="cpu" if offload else None, **options)
    optimizer_cls = late_last(optimizer_cls) if prefetch else optimizer_cls
    return model, optimizer_cls(model.parameters(), **settings)


def core_of(stage: int, model: nn.Module, optimizer_cls: type, group, options, settings):
    if complaint := would_mix(model.named_parameters(), group):
        raise CannotShard(complaint)
    if stage == 2 and any(p in owners and owners[p]() is not None for p in model.parameters()):
        raise CannotShard(
            "hardened=False, and this module has replicas already, so its gradients would be"
            " averaged twice: build the model anew."
        )
    hand_out(model.buffers(), group)
    if stage in (1, 2):
        hand_out((p for p in model.parameters() if not p.requires_grad), group)
        check_elementwise(optimizer_cls, settings, next(model.parameters()))
        kind = core.ShardedStates if stage == 1 else core.ShardedGradients
        optimizer = kind(model.parameters(), optimizer_cls, group, **options, **settings)
        optimizer.why_not_clip = lambda parameter: OF_CORE
        for bucket in optimizer.buckets:
            optimizer.inner.register_step_pre_hook(lambda *_, each=bucket: Bucket.check(each))
        note(list(model.parameters()), optimizer)
        return model, optimizer
    if stage == 0:
        model = data_parallel.DistributedDataParallel(model, group=group, hardened=False, **options)
    else:
        whole = list(model.parameters())
        core_stage3.fully_shard(model, group=group, **options)
        replaced(whole, by="fully_shard")
        watch_steps()
    return model, optimizer_cls(model.parameters(), **settings)


def sharded_optimizer(model: nn.Module, optimizer_cls: type, kind: type, group, **options):
    """The optimizer of all parameters, under their names, which ranks compare."""
    buffers = [fact(name, buffer) for name, buffer in model.named_buffers()]
    rule = "all ranks shard a model with the same buffers"
    agree(buffers, group, CannotShard, rule, changes_rows(model, group))
    optimizer = kind(list(model.named_parameters()), optimizer_cls, group, **options)
    hand_out(model.buffers(), group)
    return optimizer


def default_units(model: nn.Module) -> Iterable[nn.Module]:
    """The model's children. A list of modules computes nothing itself, so its members replace it;
    parameters in a list are the model's own."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from default_units(child)
        elif not isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            yield child
