"""The cores on 1, 2 and 4 pretended GPUs: the plain model's values, one order of calls on all
ranks, and no wait of the host in a step, but for the one question of a loss scaler."""

import cases_cores as cases
import pytest

pytestmark = pytest.mark.ranks

COUNTS = (1, 2, 4)
SCALER = 1  # whether all gradients are finite


@pytest.mark.parametrize("gpus", COUNTS)
def test_data_parallelism(on_gpus, gpus):
    """Must catch: a bucket that is read before its all-reduce has ended (drop the wait), flags that
    are read on the host where every parameter was used."""
    on_gpus(gpus, cases.averaged_gradients).is_right()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero(on_gpus, gpus, stage):
    """Must catch: a sum that is not divided, a shard that is a copy, a full tensor that is not
    gathered again before backward."""
    on_gpus(gpus, cases.sharded, stage).is_right()


@pytest.mark.parametrize("tied", [0, 1])
@pytest.mark.parametrize("gpus", COUNTS)
def test_tensor_parallelism(on_gpus, gpus, tied):
    """Must catch: a bias that every rank adds, a question on the host whether a token is known."""
    on_gpus(gpus, cases.split, tied).is_right()


@pytest.mark.parametrize("tied", [0, 1])
@pytest.mark.parametrize("gpus", COUNTS)
def test_sequence_parallelism(on_gpus, gpus, tied):
    """Must catch: gradients of norms that are not added up, all tokens kept under the address of
    another tensor."""
    on_gpus(gpus, cases.split_by_tokens, tied).is_right()


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "eager 1F1B", "interleaved 1F1B"])
@pytest.mark.parametrize("tied", [0, 1])
@pytest.mark.parametrize("gpus", COUNTS)
def test_pipelines(on_gpus, gpus, name, tied):
    """Must catch: one group for both directions, tied gradients that count an earlier sum twice."""
    on_gpus(gpus, cases.pipelined, name, tied).is_right()


@pytest.mark.parametrize("gpus", COUNTS)
def test_mixed_precision(on_gpus, gpus):
    """Must catch: a question on the host for each gradient, a flag on the CPU."""
    on_gpus(gpus, cases.masters_and_a_scale).is_right(SCALER)


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_by_function"])
def test_recomputation(on_gpus, name):
    """Must catch: a second run that restores the CPU's random state alone."""
    on_gpus(1, cases.recomputed_with_dropout, name).is_right()
