"""Techniques that share a training among ranks, on 1, 2 and 4 pretended GPUs: the plain model's
values, one order of calls on all ranks, and a budget for the host's waits in a step."""

import cases_ranks as cases
import pytest

pytestmark = pytest.mark.ranks

COUNTS = (1, 2, 4)
LADDER = ("ParameterServer", "PerTensor", "Bucketed", "DistributedDataParallel")
VARIANTS = ("plain", "ring", "fp32 sums", "clip")
SCALER = 3  # a loss scaler asks once whether all gradients are finite
# before the update, when all copies are under way; in stage 3 once a unit, at the end of backward
OFFLOAD = {1: 1, 2: 1, 3: 5}


@pytest.mark.parametrize("kind", LADDER)
@pytest.mark.parametrize("gpus", COUNTS)
def test_data_parallelism(on_gpus, gpus, kind):
    """Must catch: a bucket that is read before its all-reduce has ended (drop a wait()), calls in
    the order in which gradients come on each rank, an .item() in a step."""
    on_gpus(gpus, cases.data_parallel_as, kind).is_right()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero(on_gpus, gpus, stage, variant):
    """Must catch: a shard that is gathered from memory that nobody wrote (drop the update), sums
    without the division by the ranks, a norm that is read on the host."""
    on_gpus(gpus, cases.zero_as, stage, variant).is_right()


@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_3_in_bf16(on_gpus, gpus):
    """Must catch: shards that are kept in bf16, which rounds by up to 4e-3; gradients of bf16 move
    these by less than 1e-3. And a forward that does not compute in bf16."""
    on_gpus(gpus, cases.zero_as, 3, "bf16").is_right()


@pytest.mark.parametrize("scaler", ["GradScaler", "LossScaler"])
@pytest.mark.parametrize("variant", ["plain", "offload"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_with_a_loss_scaler(on_gpus, gpus, stage, variant, scaler):
    """Must catch: gradients on the host that are unscaled by a number on the GPU, a wait for each
    gradient."""
    waits = SCALER + (OFFLOAD[stage] if variant == "offload" else 0)
    on_gpus(gpus, cases.zero_as, stage, variant, scaler).is_right(waits)


@pytest.mark.parametrize("variant", ["offload", "offload, clip"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_offloaded(on_gpus, gpus, stage, variant):
    """Must catch: an update on the host that reads gradients before they have come."""
    on_gpus(gpus, cases.zero_as, stage, variant).is_right(OFFLOAD[stage])


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_saving(on_gpus, gpus, stage):
    """Must catch: states that come back on the CPU, momentum that does not come back."""
    on_gpus(gpus, cases.saved_and_resumed, stage).is_right()


@pytest.mark.parametrize(
    "variant", ["plain", "clip", "sequence", "sequence, regather, clip", "partitioned"]
)
@pytest.mark.parametrize("gpus", COUNTS)
def test_tensor_parallelism(on_gpus, gpus, variant):
    """Must catch: a bias that every rank adds, an all-gather into a tensor that is not contiguous,
    a loss that asks on the host whether a target is in its part of the vocabulary."""
    on_gpus(gpus, cases.tensor_parallel_as, variant).is_right()


@pytest.mark.parametrize("gpus", [2, 4])
def test_data_and_tensor_parallelism(on_gpus, gpus):
    """Must catch: groups of a mesh that ranks make in different orders."""
    on_gpus(gpus, cases.mesh_of_data_and_tensor_parallelism).is_right()


@pytest.mark.parametrize("module", ["plain", "fast"])
@pytest.mark.parametrize("gpus", COUNTS)
def test_collectives(on_gpus, gpus, module):
    """Must catch: a plan whose messages of a pair are told apart by their tags, a wait for the work
    of one message in a batch."""
    on_gpus(gpus, cases.collectives_of, module).is_right()


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_hierarchical_all_reduce(on_gpus, gpus):
    """Must catch: a leader that sends in the group of its node before the node's sum is there."""
    on_gpus(gpus, cases.hierarchical).is_right()
