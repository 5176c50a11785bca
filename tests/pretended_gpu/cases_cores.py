"""The cores of the techniques on pretended GPUs, each beside the plain model."""

from copy import deepcopy

import torch
import torch.distributed as dist
from plainly import assert_close, batch, model, part, sgd, train, trained
from pretended.step import Step, watched

from shardlab.data_parallel import core as data_parallel
from shardlab.gpt import next_token_loss
from shardlab.mixed_precision import core as mixed_precision
from shardlab.pipelines import core as pipelines
from shardlab.pipelines.schedules import schedule
from shardlab.recompute import core as recompute
from shardlab.tensor_parallel import core as tensor_parallel
from shardlab.tensor_parallel import core_sequence
from shardlab.zero import core as zero
from shardlab.zero import core_stage3 as zero3

BUCKET_BYTES = 4096  # several buckets, the last of which is not full
MOMENTUM = dict(lr=0.1, momentum=0.9)


def averaged_gradients() -> Step:
    net, tokens = model(seed=dist.get_rank()), part()
    replica = data_parallel.DistributedDataParallel(net, BUCKET_BYTES)
    step = train(lambda: next_token_loss(replica(tokens), tokens).backward(), sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained())
    return step


def sharded(stage: int) -> Step:
    net, tokens = model(seed=dist.get_rank()), part()
    if stage == 3:
        zero3.fully_shard(net, [net.embedding, *net.blocks, net.head])
        optimizer = sgd(net.parameters())
    else:
        kind = {1: zero.ShardedStates, 2: zero.ShardedGradients}[stage]
        optimizer = kind(net.parameters(), torch.optim.SGD, bucket_bytes=BUCKET_BYTES, **MOMENTUM)
    step = train(lambda: next_token_loss(net(tokens), tokens).backward(), optimizer)
    found = zero3.whole_parameters(net) if stage == 3 else dict(net.named_parameters())
    assert_close(found, trained())
    return step


def split(tied: int) -> Step:
    net, tokens = tensor_parallel.split_gpt(model(tied_head=tied)), batch()

    def backward():
        loss = tensor_parallel.vocabulary_parallel_loss(net(tokens), tokens, net.config.vocabulary)
        loss.backward()

    step = train(backward, sgd(net.parameters()))
    plain = tensor_parallel.split_gpt(deepcopy(trained(tied_head=tied)))
    assert_close(dict(net.named_parameters()), plain)
    return step


def split_by_tokens(tied: int) -> Step:
    net, tokens = core_sequence.split_gpt_by_tokens(model(tied_head=tied)), batch()

    def backward():
        loss = tensor_parallel.vocabulary_parallel_loss(net(tokens), tokens, net.config.vocabulary)
        loss.backward()
        core_sequence.sum_gradients(net)

    step = train(backward, sgd(net.parameters()))
    plain = core_sequence.split_gpt_by_tokens(deepcopy(trained(tied_head=tied)))
    assert_close(dict(net.named_parameters()), plain)
    return step


def pipelined(name: str, tied: int, microbatches: int = 4) -> Step:
    n = dist.get_world_size()
    sizes = dict(layers=2 * n, tied_head=tied)
    net, tokens = model(**sizes), batch(sequences=4)
    layers = [net.embedding, *net.blocks, net.head]
    lists = schedule(name, n, microbatches)
    pipeline = pipelines.Pipeline(layers, lists, tokens, lambda y, t: next_token_loss(y, t) / 2)

    def two_halves():
        pipeline.step(tokens, tokens)
        pipeline.step(tokens, tokens)

    step = train(two_halves, sgd(pipeline.parameters()))
    own = {id(p) for p in pipeline.parameters()}
    found = {name: p for name, p in net.named_parameters() if id(p) in own}
    assert_close(found, trained(sequences=4, **sizes))
    return step


def masters_and_a_scale() -> Step:
    net, tokens = model(dtype=torch.float32).half(), part()  # draws of fp16 are other numbers
    optimizer = mixed_precision.MasterWeights(net.parameters(), torch.optim.SGD, **MOMENTUM)
    scaler = mixed_precision.LossScaler(init_scale=8.0)
    replica = data_parallel.DistributedDataParallel(net, BUCKET_BYTES)

    def backward():
        scaler.scale(next_token_loss(replica(tokens), tokens)).backward()

    step = train(backward, optimizer, scaler=scaler)
    assert_close(dict(net.named_parameters()), trained(dtype=torch.float32), within=4e-3)
    return step


def recomputed_with_dropout(name: str) -> Step:
    """A second run that draws the first one's numbers gives the same gradients, bit by bit."""
    gradients = []
    for way in (None, getattr(recompute, name)):
        net, tokens = model(dropout=0.3), batch()
        called = [net.embedding, *net.blocks, net.head]
        torch.manual_seed(3)
        torch.rand(5)  # the CPU's generator is elsewhere than the device's
        with watched() as step:
            x = tokens
            for layer in called:
                x = layer(x) if way is None else way(layer, x)
            next_token_loss(x, tokens).backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(map(torch.equal, *gradients))
    return step
