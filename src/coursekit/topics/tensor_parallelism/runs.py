"""Recordings of `make gpu` and races of `make bench` for tensor parallelism: this book's, with and
without sequence parallelism, beside PyTorch's DTensor plan of the same model.

Ranks that share a GPU talk through gloo, over the host: their gradients and bytes count, their
times say nothing about a cluster.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TASKS, TINY, TURNS, Bench, Result, Run, TrainingTask, Way
from coursekit.recordings.recordings import Row
from shardlab.gpt import GPTConfig, next_token_loss
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    core,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)

CLOSE = 1e-4  # relative, in fp32: sums in another order, and products of another shape
NO_MORE = 1.0  # of the time, the peak and the bytes of PyTorch's
RACED_TASKS = (
    *TASKS,
    TrainingTask(
        "gated, 7.5M parameters",
        dict(
            layers=4,
            hidden=256,
            heads=8,
            key_value_heads=4,
            feed_forward=704,
            vocabulary=8192,
            max_sequence=64,
            learned_positions=0,
            biases=0,
            gated_mlp=1,
            tied_head=0,
        ),
    ),
)


# --- the ways: (loss and gradients of (tokens, targets), optimizer) -------------------------------


def split_by_plan(
    net: nn.Module, optimizer_cls: type, sequence=False, regather=False, chunks=0, **settings
) -> tuple:
    plan = gpt_plan(net.config)
    plan = sequence_parallel(plan, regather) if sequence else plan
    apply_tensor_parallel(net, overlapped(plan, chunks) if chunks else plan)
    optimizer = optimizer_cls(net.parameters(), **settings)

    def gradients(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = vocabulary_parallel_loss(net(tokens), targets, net.config.vocabulary)
        loss.backward()
        if sequence:
            sum_gradients(optimizer)
        return loss.detach()

    return gradients, optimizer


def split_by_core(net: nn.Module, optimizer_cls: type, **settings) -> tuple:
    core.split_gpt(net)

    def gradients(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = core.vocabulary_parallel_loss(net(tokens), targets, net.config.vocabulary)
        loss.backward()
        return loss.detach()

    return gradients, optimizer_cls(net.parameters(), **settings)


def dtensor(net: nn.Module, optimizer_cls: type, sequence=False, **settings) -> tuple:
    """This book's GPT as PyTorch's tutorial on tensor parallelism cuts it: vocabulary-parallel too,
    and with the head tied again, which parallelize_module unties."""
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    mesh = init_device_mesh(next(net.parameters()).device.type, (dist.get_world_size(),))
    parallelize_module(net, mesh, torch_plan(net.config, sequence))
    if net.config.tied_head:
        net.head.scores.weight = net.embedding.tokens.weight
    # on a GPU an optimizer updates a group at once, which no group of both kinds of tensors allows
    groups = [
        [p for p in net.parameters() if isinstance(p, DTensor) is cut] for cut in (True, False)
    ]
    optimizer = optimizer_cls([dict(params=own) for own in groups if own], **settings)

    def gradients(tokens: Tensor, targets: Tensor) -> Tensor:
        targets = DTensor.from_local(targets.flatten(), mesh, [Replicate()], run_check=False)
        with loss_parallel():
            loss = F.cross_entropy(net(tokens).flatten(0, 1), targets)
            loss.backward()
        return loss.detach()

    return gradients, optimizer


def torch_plan(config: GPTConfig, sequence: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
    )

    outside = Shard(1) if sequence else Replicate()
    whole = dict(input_layouts=Replicate(), output_layouts=Replicate())
    # a DTensor comes out: the loss knows that the scores are cut
    cut = dict(output_layouts=Shard(-1), use_local_output=False)
    plan = {
        "embedding.tokens": RowwiseParallel(**whole),
        "blocks.*.attention.qkv": ColwiseParallel(),
        "blocks.*.attention.output": RowwiseParallel(output_layouts=outside),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=outside),
        "head.scores": ColwiseParallel(input_layouts=outside, **cut),
    }
    if config.gated_mlp:
        plan["blocks.*.mlp.gate"] = ColwiseParallel()
    if sequence:
        enter = dict(input_layouts=Shard(1), desired_input_layouts=Replicate())
        leave = dict(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        plan |= {
            "embedding": PrepareModuleOutput(**leave),
            "blocks.*.attention_norm": SequenceParallel(),
            "blocks.*.attention": PrepareModuleInput(**enter),
            "blocks.*.mlp_norm": SequenceParallel(),
            "blocks.*.mlp": PrepareModuleInput(**enter),
            "head.norm": SequenceParallel(),
        }
    return plan


PLAIN, OWN_TOKENS, REGATHERED = "tensor", "sequence", "sequence, gathered again"
DTENSOR, DTENSOR_SEQUENCE = "PyTorch, DTensor", "PyTorch, DTensor, sequence"
WAYS = {
    PLAIN: Way(split_by_plan, peers=(DTENSOR,), most=NO_MORE),
    f"{PLAIN}, core": Way(split_by_core, peers=(DTENSOR,)),
    f"{PLAIN}, overlap": Way(split_by_plan, dict(chunks=1), (DTENSOR,)),
    OWN_TOKENS: Way(split_by_plan, dict(sequence=True), (DTENSOR_SEQUENCE,), NO_MORE),
    f"{OWN_TOKENS}, overlap": Way(
        split_by_plan, dict(sequence=True, chunks=1), (DTENSOR_SEQUENCE,)
    ),
    REGATHERED: Way(split_by_plan, dict(sequence=True, regather=True), (DTENSOR_SEQUENCE,)),
    DTENSOR: Way(dtensor),
    DTENSOR_SEQUENCE: Way(dtensor, dict(sequence=True)),
}


# --- on a rank: all ranks see the same batch ------------------------------------------------------


weighed_step = partial(races.weighed, **races.OWN_BACKWARD)


def right_parts(way: Way, task: TrainingTask, device: str) -> tuple[int, int]:
    """(parameters whose gradient is this rank's part of the plain model's, all of them)"""
    plain, net, tokens = task.model(device), task.model(device), task.shared_tokens(device)
    next_token_loss(plain(tokens), tokens).backward()
    gradients, _ = way.build(net, torch.optim.SGD, lr=0.1)
    gradients(tokens, tokens)
    me, n, cuts = dist.get_rank(), dist.get_world_size(), dict(net.named_modules())
    right, expected = 0, dict(plain.named_parameters())
    for name, parameter in net.named_parameters():
        owner, _, own = name.rpartition(".")
        cut = getattr(cuts[owner], "cuts", {}).get(own)
        want = expected[name].grad
        want = core_part(want, parameter) if cut is None else cut.part(want, me, n)
        right += bool((parameter.grad - want).norm() <= CLOSE * want.norm())
    return right, len(expected)


def core_part(whole: Tensor, own: Tensor) -> Tensor:
    """The part of a whole gradient that has the shape of this rank's: only one dimension is cut."""
    for dim, (size, own_size) in enumerate(zip(whole.shape, own.shape)):
        if size != own_size:
            return core.part(whole, dim, None)
    return whole


# --- make gpu -------------------------------------------------------------------------------------


def tensor_parallel(
    device: torch.device, task: TrainingTask | None = None, turns: int = 11
) -> Iterator[Row]:
    """Right gradients, bytes, peaks and times of a step."""
    for case, trained in races.layouts(device, task):
        part, trained = (
            f"tensor_parallel, {case['ranks']} ranks",
            races.cut_heads(trained, case["ranks"]),
        )
        case["heads"] = trained.sizes["heads"]
        given = "tensor_parallel", part, case, WAYS, trained, turns, rows_of
        yield from attempt(part, races.rows_of_ways(*given, **races.OWN_BACKWARD))


def rows_of(world, way: Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    count, device = case["ranks"], case["device"]
    found = world.run(weighed_step, way, task, device=device)[0]
    predicted = ()
    if way.peers:
        right, of = world.run(right_parts, way, task, device)[0]
        yield Row("tensor_parallel.right_gradients", right, "count", case, "parameter_tensors", of)
        predicted = ("tensor_sent_bytes", predicted_bytes(way, task, count))
    yield from races.weight_rows("tensor_parallel", found, case, *predicted)


def predicted_bytes(way: Way, task: TrainingTask, count: int) -> int:
    """The bytes that a rank sends in a step, by the formula."""
    given = dict(
        **RECIPES["fp32 Adam"].quantities,
        **GPTConfig(**task.sizes).quantities(),
        sequence_parallel=int(way.options.get("sequence", False)),
        regather=int(way.options.get("regather", False)),
        microbatch=task.microbatch,
        sequence=task.sizes["max_sequence"],
        accumulation_steps=1,
        tensor_parallel=count,
    )
    return evaluate(["tensor_sent_bytes"], allow_unused=True, **given)["tensor_sent_bytes"]


# --- make bench -----------------------------------------------------------------------------------


def race(
    tasks: Sequence[TrainingTask] = RACED_TASKS, counts: Sequence[int] = (2, 4), turns: int = TURNS
) -> list[Result]:
    """Step times in turns, peak bytes and bytes sent of each way, beside PyTorch's of the same
    kind."""
    given = WAYS, weighed_step, tasks, counts, turns
    return races.race_of_ways("tensor_parallel", *given, **races.OWN_BACKWARD)


# a row of the table for each of 8 ranks, which DTensor wants: of 11 rows the last two get none
QUICK_TASK = TINY._replace(sizes={**TINY.sizes, "vocabulary": 23})
RUNS = (Run(45, tensor_parallel, dict(task=QUICK_TASK, turns=1)),)
BENCHES = (Bench("tensor-parallel", race, dict(tasks=(TINY,), counts=(2,), turns=2)),)
