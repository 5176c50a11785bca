"""The entry to all stages: for labs, tests and races."""

from collections.abc import Iterable

import torch
from torch import nn

from ... import data_parallel
from ...common.agreement import agree, changes_rows, fact, hand_out
from ...common.before_step import check_elementwise
from ...common.shards import CannotShard
from ...experts.core_parallel import count_everywhere
from . import stage1, stage2
from .arriving import late_last
from .offload import cpu_offload
from .stage3 import fully_shard

OF_SHARDS = {"bucket_bytes", "collectives", "offload", "prefetch"}
OF_UNITS = {"units", "collectives", "offload", "compute_dtype", "device", "prefetch"}
OPTIONS = ({"bucket_bytes"}, OF_SHARDS, OF_SHARDS, OF_UNITS)


def shard(
    model: nn.Module,
    optimizer_cls: type,
    *,
    stage: int,
    group=None,
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
    units           stage 3: see fully_shard; by default the model's children, of a list its members
    bucket_bytes    stages 0 to 2: of parameters that travel together
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
    if others := sorted(set(options) - OPTIONS[stage]):
        known = ", ".join(sorted(OPTIONS[stage]))
        raise CannotShard(f"{' and '.join(others)}: stage {stage} has {known}.")
    options.pop("offload", None)
    first = next(model.parameters(), None)
    if stage and first is None:
        raise CannotShard(f"{type(model).__name__} has no parameters: there is nothing to shard.")
    if stage == 3:
        # fully_shard refuses a model on the meta device without a device to go to
        like = torch.empty(0, device=device or ("cpu" if first.is_meta else first.device))
        check_elementwise(optimizer_cls, settings, like)
        options["units"] = list(default_units(model)) if units is None else list(units)
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


def sharded_optimizer(model: nn.Module, optimizer_cls: type, kind: type, group, **options):
    """The optimizer of all parameters, under their names, which ranks compare."""
    buffers = [fact(name, buffer) for name, buffer in model.named_buffers()]
    rule = "all ranks shard a model with the same buffers"
    agree(buffers, group, CannotShard, rule, changes_rows(model, group))
    optimizer = kind(list(model.named_parameters()), optimizer_cls, group, **options)
    hand_out(model.buffers(), group)
    count_everywhere(model, group)
    return optimizer


def default_units(model: nn.Module) -> Iterable[nn.Module]:
    """The model's children. A list of modules computes nothing itself, so its members replace it;
    parameters in a list are the model's own."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from default_units(child)
        elif not isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            yield child
