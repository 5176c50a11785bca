"""PyTorch's own pipelines, torch.distributed.pipelining, cut and fed as this book's: for races."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shardlab.pipelines.partition import PipelinePlan


class TorchPipeline:
    """This rank's stages under one of PyTorch's schedules. `step` as our Pipeline has it."""

    def __init__(self, layers: list[nn.Module], plan: PipelinePlan, loss: Callable, kind: str):
        from torch.distributed import pipelining  # here: it takes a second to import

        rank = torch.distributed.get_rank()
        own = [stage for stage, home in sorted(plan.home.items()) if home == rank]
        device = next(layers[plan.cuts[own[0]][0]].parameters()).device
        modules = [nn.Sequential(*layers[slice(*plan.cuts[stage])]) for stage in own]
        stages = [
            pipelining.PipelineStage(module, stage, len(plan.cuts), device)
            for module, stage in zip(modules, own)
        ]
        self.modules = modules
        several = kind in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble")
        self.schedule = getattr(pipelining, kind)(
            stages if several else stages[0], plan.microbatches, loss_fn=loss
        )
        self.first, self.last = 0 in own, len(plan.cuts) - 1 in own
        # outputs of the last stage that nobody asked for would count as memory
        able = "return_outputs" in inspect.signature(self.schedule.step).parameters
        self.options = dict(return_outputs=False) if able else {}

    def parameters(self):
        return [parameter for module in self.modules for parameter in module.parameters()]

    def step(self, batch: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        named = dict(target=targets, losses=losses) if self.last else {}
        self.schedule.step(*([batch] if self.first else []), **named, **self.options)
        return torch.stack([loss.detach() for loss in losses]) if losses else torch.empty(0)
