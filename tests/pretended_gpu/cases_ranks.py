"""Techniques that share a training among ranks, hardened and core, each beside the plain model."""

import shutil
import tempfile
from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import torch
import torch.distributed as dist
from plainly import CLOSE, assert_close, batch, model, part, sgd, train, trained
from pretended.step import Step, watched

from coursekit.topics.data_parallelism import ladder
from coursekit.topics.zero.fast_ring import FastRing
from ranklab.measure.ledger import Ledger
from shardlab import (
    collective_plans,
    collectives,
    collectives_fast,
    compression,
    context_parallel,
    data_parallel,
    saving,
    zero,
)
from shardlab.context_parallel import core as context_core
from shardlab.experts.core import mixtures
from shardlab.experts.hardened.apply import apply_expert_parallel
from shardlab.gpt import GPT, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mesh import Mesh
from shardlab.mixed_precision import core as mixed_precision
from shardlab.mixed_precision.hardened.loss_scaler import LossScaler
from shardlab.pipelines import core as pipelines
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.partitioned import checkpoint_partitioned
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    core_sequence,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel import core as tensor_core
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.zero import core, core_stage3
from shardlab.zero.hardened.flat import Native
from shardlab.zero.hardened.full_parameters import unsharded

BUCKET_BYTES = 4096  # several buckets, the last of which is not full
CLIP = 0.05  # below every norm
MOMENTUM = dict(lr=0.1, momentum=0.9)


# --- data parallelism and ZeRO --------------------------------------------------------------------


def data_parallel_as(kind: str) -> Step:
    net, tokens = model(seed=dist.get_rank()), part()
    buckets = kind in ("core", "Bucketed", "DistributedDataParallel")
    options = dict(bucket_bytes=BUCKET_BYTES) if buckets else {}
    by_core = data_parallel.core.DistributedDataParallel
    ways = {**vars(data_parallel), **vars(ladder), "core": by_core}
    replica = ways[kind](net, **options)
    step = train(lambda: next_token_loss(replica(tokens), tokens).backward(), sgd(net.parameters()))
    if kind != "ParameterServer" or dist.get_rank() == 0:  # the server's, until the next forward
        assert_close(dict(net.named_parameters()), trained())
    return step


def zero_as(stage: int, variant: str = "plain", scaled_by: str = "") -> Step:
    dtype = torch.float64
    within = 1e-3 if variant == "bf16" else CLOSE
    options = {
        "ring": dict(collectives=FastRing()),
        "ahead": dict(prefetch=True),
        "offload": dict(offload=True),
        "offload, clip": dict(offload=True),
        "offload, ahead": dict(offload=True, prefetch=True),
        "offload, broken": dict(offload=True),
        "ahead, broken": dict(prefetch=True),
        "bf16": dict(compute_dtype=torch.bfloat16),
    }.get(variant, {})
    if stage < 3:
        options["bucket_bytes"] = BUCKET_BYTES
    net, tokens = model(seed=dist.get_rank(), dtype=dtype), part()
    if variant == "core":
        called, optimizer = net, sharded_by_the_core(net, stage)
    else:
        called, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, **MOMENTUM, **options)
    clip = CLIP if "clip" in variant else 0.0
    scaler = {
        "": None,
        "GradScaler": torch.amp.GradScaler("cuda", init_scale=8.0),
        "LossScaler": LossScaler(init_scale=8.0),
    }[scaled_by]

    def backward():
        loss = next_token_loss(called(tokens), tokens)
        (scaler.scale(loss) if scaler else loss).backward()

    def before_step():
        if scaler:
            scaler.unscale_(optimizer)
        if clip:
            clip_gradients(optimizer, clip)

    if "broken" in variant:
        stop_a_backward(net.blocks[0], backward)
        optimizer.zero_grad()
    step = train(backward, optimizer, before_step, scaler)
    if variant == "core" and stage == 3:
        assert_close(core_stage3.whole_parameters(net), trained())
        return step
    with unsharded(net) if stage == 3 else nullcontext():
        assert_close(dict(net.named_parameters()), trained(clip, dtype=dtype), within)
        if variant == "bf16":
            pairs = zip(net.parameters(), trained(clip, dtype=dtype).parameters())
            assert max((mine.cpu() - plain).abs().max().item() for mine, plain in pairs) > 1e-6
    return step


def sharded_by_the_core(net, stage: int):
    if stage == 3:
        core_stage3.fully_shard(net, [net.embedding, *net.blocks, net.head])
        return sgd(net.parameters())
    kind = {1: core.ShardedStates, 2: core.ShardedGradients}[stage]
    return kind(net.parameters(), torch.optim.SGD, bucket_bytes=BUCKET_BYTES, **MOMENTUM)


def mean_in_16_bits() -> Step:
    n = dist.get_world_size()
    large = torch.full((n,), 6e4, dtype=torch.float16, device="cuda")
    with watched() as step:
        (mean,) = Native().reduce_scatter([large], share=1 / n)
    assert mean.tolist() == [6e4]
    mine = torch.full((n,), 3.0 + 3 * dist.get_rank(), dtype=torch.bfloat16, device="cuda")
    (mean,) = Native().reduce_scatter([mine], share=1 / n)
    assert mean.tolist() == [1.5 * (n + 1)] and mine[0] == 3 + 3 * dist.get_rank()
    return step


def stop_a_backward(module: torch.nn.Module, backward):
    """A backward that raises where it would enter the module."""

    def stop(gradient):
        raise KeyError("stopped")

    hook = module.register_forward_hook(lambda module, inputs, y: y.register_hook(stop) and None)
    try:
        backward()
        raise AssertionError("nothing was raised")
    except KeyError:
        hook.remove()


def saved_and_resumed(stage: int) -> Step:
    """A save after one step, resumed in another model, goes on as if nothing had happened."""
    tokens, folders = part(), [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folders)
    (folder,) = folders

    def training(seed):
        net = model(seed)
        return net, *zero.shard(net, torch.optim.SGD, stage=stage, **MOMENTUM)

    def step_of(called, optimizer):
        next_token_loss(called(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    net, called, optimizer = training(seed=0)
    step_of(called, optimizer)
    saving.save(folder, called, optimizer, 1)
    net, called, optimizer = training(seed=5)
    assert saving.resume(folder, called, optimizer).step == 1
    step_of(called, optimizer)
    with unsharded(net) if stage == 3 else nullcontext():
        assert_close(dict(net.named_parameters()), trained())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


# --- tensor parallelism ---------------------------------------------------------------------------


def split(net, group=None, sequence=False, regather=False, chunks=0):
    """(backward, optimizer) of a model that is cut by width."""
    plan = gpt_plan(net.config)
    plan = sequence_parallel(plan, regather) if sequence else plan
    plan = overlapped(plan, chunks) if chunks else plan
    apply_tensor_parallel(net, plan, group)
    optimizer = sgd(net.parameters())

    def backward(tokens, called=net):
        loss = vocabulary_parallel_loss(called(tokens), tokens, net.config.vocabulary, group)
        loss.backward()
        if sequence:
            sum_gradients(optimizer)

    return backward, optimizer


def tensor_parallel_as(variant: str, **sizes) -> Step:
    net, tokens = model(**sizes), batch()
    kind = "sequence" in variant, "regather" in variant, 3 * ("overlap" in variant)
    backward, optimizer = split(net, None, *kind)
    if "partitioned" in variant:
        net.blocks = checkpoint_every(net.blocks, 1, partial(checkpoint_partitioned, None))
    clip = CLIP if "clip" in variant else 0.0
    before_step = partial(clip_gradients, optimizer, clip) if clip else lambda: None
    step = train(partial(backward, tokens), optimizer, before_step)
    whole = whole_state_dict(net)
    names = dict(net.named_parameters())
    assert_close({k: whole[k] for k in names}, trained(clip, **sizes))
    return step


def mesh_of_data_and_tensor_parallelism() -> Step:
    mesh = Mesh(dp=2, tp=dist.get_world_size() // 2)
    net = model()
    backward, optimizer = split(net, mesh.tp.group)
    replica = data_parallel.DistributedDataParallel(net, group=mesh.dp.group)
    tokens = batch().chunk(2)[mesh.dp.rank].contiguous()
    step = train(lambda: backward(tokens, replica), optimizer)
    whole = whole_state_dict(net)
    assert_close({k: whole[k] for k, _ in net.named_parameters()}, trained())
    return step


def expert_parallel_as(capacity: float | None, overlap: bool = False) -> Step:
    n, sizes = dist.get_world_size(), dict(experts=4, experts_per_token=2, shared_experts=1)
    net, tokens = model(seed=dist.get_rank(), **sizes), part()
    for layer in mixtures(net):
        layer.capacity = capacity
    axes = Mesh(dp=n).experts(min(n, 4))
    apply_expert_parallel(net, axes, overlap)
    called, optimizer = zero.shard(net, torch.optim.SGD, stage=1, lr=0.1, momentum=0.9)
    step = train(lambda: next_token_loss(called(tokens), tokens).backward(), optimizer)
    whole = whole_state_dict(net)
    assert_close({k: whole[k] for k, _ in net.named_parameters()}, trained(**sizes))
    return step


def core_tensor_parallel(tied: int, by_tokens: bool) -> Step:
    cut = core_sequence.split_gpt_by_tokens if by_tokens else tensor_core.split_gpt
    net, tokens = cut(model(tied_head=tied)), batch()

    def backward():
        tensor_core.vocabulary_parallel_loss(net(tokens), tokens, net.config.vocabulary).backward()
        if by_tokens:
            core_sequence.sum_gradients(net)

    step = train(backward, sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), cut(deepcopy(trained(tied_head=tied))))
    return step


# --- context parallelism --------------------------------------------------------------------------


def context_parallel_as(mix: str, by_core: bool) -> Step:
    by = context_core if by_core else context_parallel
    context, net = by.Context(), model(seed=0 if by_core else dist.get_rank())
    by.context_parallel(net, context, getattr(by, mix))
    replica, own = data_parallel.DistributedDataParallel(net), context.own(batch())
    with Ledger(net):
        step = train(lambda: next_token_loss(replica(own), own).backward(), sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained())
    return step


# --- sending less ---------------------------------------------------------------------------------


def sending_less(name: str) -> Step:
    """A method on GPUs beside itself on CPUs, and what is exact beside the plain model."""
    hooks = {
        "everything": partial(compression.top_k, one_in=1),
        "top_k": compression.top_k,
        "signs": compression.signs,
        "four_bits": compression.four_bits,
        "power_sgd": partial(compression.power_sgd, rank=2),
    }
    optimizers = {
        "OneBitAdam": partial(compression.OneBitAdam, warm_up=1),
        "DeMo": compression.DeMo,
        "DiLoCo": lambda params, group: compression.DiLoCo(sgd(params), 2, group=group),
    }

    def run(device: str, group=None) -> tuple[Step, GPT]:
        net, tokens = model(seed=dist.get_rank(), device=device), part(device)
        called, optimizer = net, None
        if name in hooks:
            options = dict(bucket_bytes=BUCKET_BYTES, group=group)
            called, optimizer = compression.Compressed(net, hooks[name], **options), sgd
        else:
            optimizer = partial(optimizers[name], group=group)
        backward = lambda: next_token_loss(called(tokens), tokens).backward()
        return train(backward, optimizer(net.parameters())), net

    step, net = run("cuda")
    _, plain = run("cpu", dist.new_group(backend="gloo"))
    if name == "everything":
        assert_close(dict(net.named_parameters()), trained())
    else:  # gradients of keys' biases are rounding alone, and so are their signs: scales see them
        within = 1e-5 if name in ("signs", "OneBitAdam") else 1e-8
        assert_close(dict(net.named_parameters()), plain, within)
    return step


def zero_plus_plus(exact: bool) -> Step:
    """Without codes the plain model; with them its neighbourhood."""
    net, tokens, nodes = model(seed=dist.get_rank()), part(), 1 + (dist.get_world_size() > 2)
    mesh = Mesh(dp=nodes, tp=dist.get_world_size() // nodes)
    settings = dict(weight_bits=None, gradient_bits=None) if exact else {}
    groups = dict(inside=mesh.tp.group, across=mesh.dp.group)
    compression.zero_plus_plus(net, [*net.blocks], **groups, **settings)
    step = train(lambda: next_token_loss(net(tokens), tokens).backward(), sgd(net.parameters()))
    whole = core_stage3.whole_parameters(net)
    assert_close(whole, trained(), CLOSE if exact else 0.1)
    return step


# --- pipelines ------------------------------------------------------------------------------------


def pipelined(name: str, tied: int = 0, by_core: bool = False) -> Step:
    n = dist.get_world_size()
    sizes = dict(layers=2 * n, tied_head=tied)
    net, tokens = model(**sizes), batch(sequences=4)
    layers = [net.embedding, *net.blocks, net.head]
    lists = schedule(name, n, 4)
    if by_core:  # two halves of a step
        halved = lambda y, targets: next_token_loss(y, targets) / 2
        pipeline = pipelines.Pipeline(layers, lists, tokens, halved)
        halves = lambda: [pipeline.step(tokens, tokens) for _ in range(2)]
        step = train(halves, sgd(pipeline.parameters()))
        own = {id(p) for p in pipeline.parameters()}
        found = {name: p for name, p in net.named_parameters() if id(p) in own}
        assert_close(found, trained(sequences=4, **sizes))
        return step
    stages = 1 + max(action.stage for own in lists for action in own)
    counts = [2 * n // stages] * stages
    counts[0] += 1  # the embedding
    counts[-1] += 1  # the head
    plan = plan_pipeline(layers, lists, tokens, counts)
    pipeline = Pipeline(layers, plan, next_token_loss)
    step = train(lambda: pipeline.step(tokens, tokens), sgd(pipeline.parameters()))
    plain = trained(sequences=4, **sizes)
    of_layer = [plain.embedding, *plain.blocks, plain.head]
    for number, layer in pipeline.layers.items():
        assert_close(dict(layer.named_parameters()), of_layer[int(number)])
    return step


def pipelines_again(make: str):
    """The communicators that one pipeline makes, and those after three."""
    from pretended import nccl

    n, tokens, counts = dist.get_world_size(), batch(sequences=4), []
    net = model(layers=2 * n)
    layers, lists = [net.embedding, *net.blocks, net.head], schedule("1F1B", n, 4)
    for _ in range(3):
        if make == "core":
            pipelines.Pipeline(layers, lists, tokens, next_token_loss).step(tokens, tokens)
        else:
            plan = plan_pipeline(layers, lists, tokens)
            Pipeline(layers, plan, next_token_loss).step(tokens, tokens)
        counts.append(sum(len(one.communicators) for one in nccl.backends))
    assert counts[0] == counts[-1] > 0, counts


# --- collectives ----------------------------------------------------------------------------------


def collectives_of(module: str) -> Step:
    by = dict(plain=collectives, fast=collectives_fast)[module]
    n, me = dist.get_world_size(), dist.get_rank()
    numbers = torch.arange(11.0, device="cuda")
    mine = torch.full((5,), float(me), device="cuda")
    own = numbers.tensor_split(n)[me].contiguous()
    with watched() as step:
        summed = {}
        for plan in ("ring", "tree", "naive"):
            summed[plan] = numbers.clone()
            by.all_reduce(summed[plan], plan=getattr(collective_plans, f"{plan}_all_reduce"))
        given, added = mine.clone(), mine.clone()
        by.broadcast(given, n - 1)
        by.reduce(added, n - 1)
        shard = torch.empty_like(own)
        by.reduce_scatter(shard, numbers.clone())
        full = torch.empty_like(numbers)
        by.all_gather(full, own)
        scattered, gathered = torch.empty_like(own), torch.empty_like(numbers)
        by.scatter(scattered, numbers if me == 0 else None)
        by.gather(own, gathered if me == 0 else None)
        swapped = torch.empty(2 * n, device="cuda")
        by.all_to_all(swapped, 10.0 * me + torch.arange(2.0 * n, device="cuda"))
    by.barrier()
    assert all(torch.equal(found, n * numbers) for found in summed.values())
    assert (given == n - 1).all()
    assert me < n - 1 or (added == sum(range(n))).all()
    assert torch.equal(shard, n * own) and torch.equal(full, numbers)
    assert torch.equal(scattered, own) and (me or torch.equal(gathered, numbers))
    sent = [10.0 * rank + 2 * me + k for rank in range(n) for k in range(2)]
    assert swapped.tolist() == sent
    return step


def hierarchical() -> Step:
    mesh = Mesh(dp=2, tp=dist.get_world_size() // 2)
    numbers = torch.arange(11.0, device="cuda")
    with watched() as step:
        collectives_fast.hierarchical_all_reduce(numbers, mesh.tp.group, mesh.dp.group)
    assert torch.equal(numbers.cpu(), dist.get_world_size() * torch.arange(11.0))
    return step


# --- mixed precision ------------------------------------------------------------------------------


def core_masters_and_a_scale() -> Step:
    net, tokens = model(dtype=torch.float32).half(), part()  # draws of fp16 are other numbers
    optimizer = mixed_precision.MasterWeights(net.parameters(), torch.optim.SGD, **MOMENTUM)
    scaler = mixed_precision.LossScaler(init_scale=8.0)
    replica = data_parallel.core.DistributedDataParallel(net, BUCKET_BYTES)
    backward = lambda: scaler.scale(next_token_loss(replica(tokens), tokens)).backward()
    step = train(backward, optimizer, scaler=scaler)
    assert_close(dict(net.named_parameters()), trained(dtype=torch.float32), within=4e-3)
    return step
