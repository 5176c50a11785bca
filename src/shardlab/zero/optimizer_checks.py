"""Checks of an optimizer that steps on the flat shards of stage 3, made when it steps.

The optimizer is PyTorch's or a user's, made from model.parameters(), so an earlier check is
impossible. An optimizer that treats each element by itself is right; an optimizer that looks at
rows, norms of a layer or a line search is not, and is found by trial. Parameter groups chosen by
shape or name are empty on one side.
"""

from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .. import torch_clip_and_scale
from ..backward import owners
from ..shards import CannotShard, groups_of
from .checks import check_elementwise

# each element by itself, as the tests of stage 1 show; others are tried
KNOWN = {
    getattr(torch.optim, name)
    for name in ("SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop ASGD Rprop".split())
}
shards = WeakTensorKeyDictionary()  # of stage 3
looked_at: WeakKeyDictionary = WeakKeyDictionary()  # optimizer -> how many parameters it had


hook: list = []  # the handle of look, once there is a shard


def watch(shard: nn.Parameter):
    if not hook:
        hook.append(register_optimizer_step_pre_hook(look))
        torch_clip_and_scale.watch_steps()
    shards[shard] = True


def look(optimizer: torch.optim.Optimizer, args, kwargs):
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    if looked_at.get(optimizer) == count:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(parameter in shards for parameter in parameters):
        look_at(optimizer, parameters)
        looked_at[optimizer] = count


def look_at(optimizer: torch.optim.Optimizer, parameters: list):
    for number, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            raise CannotShard(
                f"parameter group {number} of {type(optimizer).__name__} is empty: shards are flat,"
                " and a rule by shape or name finds none. Cut them by that rule,"
                " fully_shard(..., apart=lambda name, parameter: 'decay' if parameter.dim() > 1"
                " else 'plain'), and choose groups by the names of the shards."
            )
    for parameter in parameters:
        if parameter.requires_grad and not (groups_of(parameter) or parameter in owners):
            raise CannotShard(
                f"a parameter of shape {list(parameter.shape)} is trained beside shards, and its"
                " gradient is this rank's own: add parameters to a model before fully_shard, or"
                " make replicas of the module that has them, by DistributedDataParallel."
            )
    if type(optimizer) not in KNOWN:
        check_elementwise(type(optimizer), optimizer.defaults, parameters[0])
