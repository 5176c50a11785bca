"""PyTorch's own techniques on virtual GPUs, beside this book's: messages and products are alike."""

from collections import Counter

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from coursekit.recordings.races import TINY, step_by, train_step
from coursekit.topics.data_parallelism import runs as data_parallelism
from coursekit.topics.tensor_parallelism import runs as tensor_parallelism
from coursekit.topics.zero import runs as zero
from ranklab.virtual import GPU, Links, VirtualGPUs
from shardlab.gpt import GPT, GPTConfig

RANKS = 2
QUICK = GPU({torch.float32: 1e12}, 1e12, Links(1e9, node_latency_seconds=0), launch_seconds=1e-9)
TASK = TINY._replace(sizes={**TINY.sizes, "vocabulary": 12, "tied_head": 0})


def step_of(way, train, settings):
    with VirtualGPUs(RANKS, QUICK) as gpu:
        built = way.build(GPT(GPTConfig(**TASK.sizes)), torch.optim.SGD, lr=0.1, **settings)
        tokens = torch.zeros(4, 8, dtype=torch.long)
        train(*built, tokens)
        with gpu.step() as step:
            train(*built, tokens)
    return step


def sent(step, *names):
    """Nanoseconds of all messages of these operations, or of any."""
    spans = [span for span in step.spans if not isinstance(span.stream, str)]
    return sum(span.end - span.start for span in spans if not names or span.name in names)


def products(step):
    """Nanoseconds of each product; one of them adds a bias at once, and the other does it later."""
    return Counter(s.end - s.start for s in step.spans if s.name in ("mm", "addmm", "bmm"))


BEYOND = {  # of PyTorch's messages over this book's, where they differ
    "ZeroRedundancyOptimizer": 2,  # averages whole gradients, and hands each parameter out
    "DTensor, sequence": 1.028,  # adds an embedding's rows up on all ranks
}
FAMILIES = {
    "DDP": (data_parallelism.WAYS, "shardlab", "PyTorch", train_step),
    "DDP, tuned": (data_parallelism.WAYS, "shardlab", "PyTorch, tuned", train_step),
    "ZeroRedundancyOptimizer": (zero.WAYS, "stage 1", zero.REDUNDANCY[1], train_step),
    "fully_shard": (zero.WAYS, "stage 3", zero.FULLY[1], train_step),
    "DTensor": (tensor_parallelism.WAYS, "tensor", "PyTorch, DTensor", step_by),
    "DTensor, sequence": (
        tensor_parallelism.WAYS,
        "sequence",
        "PyTorch, DTensor, sequence",
        step_by,
    ),
}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_peer_runs_in_virtual_time_as_on_its_gpus(family):
    """Must catch: products of whole tensors for those of a rank's part; trials of shapes that are
    taken for work; messages of DTensor that nobody counts; a peer whose messages end at once."""
    ways, name, peer, train = FAMILIES[family]
    settings = {} if ways is data_parallelism.WAYS else dict(foreach=True)
    ours, theirs = (step_of(ways[one], train, settings) for one in (name, peer))
    assert products(ours) == products(theirs)
    assert theirs.exposed_seconds + theirs.idle_seconds("other stream") > 0
    assert theirs.host_waits == 0
    if family == "fully_shard":
        mixed = hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype")  # PyTorch 2.15
        copies = {"all_gather_copy_in", "split_with_sizes_copy"}
        copies.add("chunk_cat_mixed_dtype" if mixed else "chunk_cat")
        assert copies <= {span.name for span in theirs.spans}
    beyond = sent(theirs) / sent(ours)
    assert beyond == pytest.approx(BEYOND.get(family, 1), rel=0.005)


def test_a_functional_message_travels_until_its_result_is_used():
    """Must catch: a message of DTensor that is waited for at once, or never."""
    with VirtualGPUs(RANKS, QUICK) as gpu:
        mesh = init_device_mesh("cpu", (RANKS,))
        x, y = torch.ones(500), torch.ones(100_000)  # a message of 2,000 ns, and 800 of computing
        with gpu.step() as step:
            whole = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
            whole = whole.redistribute(placements=[Replicate()], async_op=True).to_local()
            y.mul_(2)
            whole.add_(1)
    assert round(1e9 * step.exposed_seconds) in range(1_195, 1_201)
