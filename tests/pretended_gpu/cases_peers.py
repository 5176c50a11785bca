"""PyTorch's own techniques on pretended GPUs, with which `make gpu` compares this book's: the same
values as the plain model's, or the pretence lacks something."""

import torch
import torch.distributed as dist
from plainly import assert_close, batch, model, part, sgd, train, trained
from pretended.step import Step
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from coursekit.topics.pipelines.peers import TorchPipeline
from coursekit.topics.tensor_parallelism.runs import dtensor
from coursekit.topics.zero.runs import redundancy_optimizer, torch_fully_shard
from shardlab.gpt import next_token_loss
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule

SETTINGS = dict(lr=0.1, momentum=0.9)  # of plainly.sgd
EVEN = dict(vocabulary=20)  # DTensor's loss wants the vocabulary in equal parts


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def named(net) -> dict[str, torch.Tensor]:
    return {name: whole(parameter) for name, parameter in net.named_parameters()}


def torch_data_parallel(**options) -> Step:
    net, tokens = model(seed=dist.get_rank()), part()
    replica = TorchDataParallel(net, **options)
    step = train(lambda: next_token_loss(replica(tokens), tokens).backward(), sgd(net.parameters()))
    assert_close(named(net), trained())
    return step


def torch_zero_1(tuned: bool) -> Step:
    net, tokens = model(seed=dist.get_rank()), part()
    replica, optimizer = redundancy_optimizer(net, torch.optim.SGD, tuned, **SETTINGS)
    step = train(lambda: next_token_loss(replica(tokens), tokens).backward(), optimizer)
    assert_close(named(net), trained())
    return step


def torch_zero_3(offload: bool = False, reshard: bool | None = None) -> Step:
    net, tokens = model(), part()
    _, optimizer = torch_fully_shard(net, torch.optim.SGD, offload, reshard, **SETTINGS)
    step = train(lambda: next_token_loss(net(tokens), tokens).backward(), optimizer)
    found = {name: value.to("cuda") for name, value in net.named_parameters()}
    assert_close({name: whole(value) for name, value in found.items()}, trained())
    return step


def torch_tensor_parallel(sequence: bool) -> Step:
    net, tokens = model(**EVEN), batch()
    gradients, optimizer = dtensor(net, torch.optim.SGD, sequence, **SETTINGS)
    step = train(lambda: gradients(tokens, tokens), optimizer)
    assert_close(named(net), trained(**EVEN))
    return step


def torch_pipeline(name: str, kind: str) -> Step:
    n = dist.get_world_size()
    sizes = dict(layers=2 * n, tied_head=0)
    net, tokens = model(**sizes), batch(sequences=4)
    layers = [net.embedding, *net.blocks, net.head]
    lists = schedule(name, n, 4)
    stages = 1 + max(action.stage for own in lists for action in own)
    counts = [2 * n // stages] * stages
    counts[0] += 1
    counts[-1] += 1
    plan = plan_pipeline(layers, lists, tokens, counts)
    pipeline = TorchPipeline(layers, plan, next_token_loss, kind)
    step = train(lambda: pipeline.step(tokens, tokens), sgd(pipeline.parameters()))
    plain = trained(sequences=4, **sizes)
    of_layer = [plain.embedding, *plain.blocks, plain.head]
    for stage, (first, end) in enumerate(plan.cuts):
        if plan.home[stage] == dist.get_rank():
            for number in range(first, end):
                assert_close(dict(layers[number].named_parameters()), of_layer[number])
    return step
