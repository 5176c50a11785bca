"""Techniques of one process, so on one pretended GPU: recomputation, precision, the account of
bytes. On more GPUs each process would do the same."""

import cases_one_gpu as cases
import pytest

from coursekit.topics.activation_checkpointing.runs import ON_CPU, WAYS
from shardlab.mixed_precision.policies import POLICIES

pytestmark = pytest.mark.ranks

MOST_OF_SAVE_ON_CPU = 200  # PyTorch waits for each tensor that it saves
POLICIES_BY_KIND = [
    *((name, kind) for name in POLICIES for kind in ("readable", "fast")),
    *((name, "torch.amp") for name in ("AUTOCAST_BF16", "AUTOCAST_FP16")),
]


@pytest.mark.parametrize("name", [name for name in WAYS if name != ON_CPU])
def test_recomputation(on_gpus, name):
    """Must catch: a second run under other kernels than the first, a value that is read on the
    host to compare both runs."""
    on_gpus(1, cases.recomputed, name).is_right()


def test_save_on_cpu(on_gpus):
    """Must catch: pinned memory that is not seen as pinned."""
    on_gpus(1, cases.recomputed, ON_CPU).is_right(MOST_OF_SAVE_ON_CPU)


def test_activations_on_the_host(on_gpus):
    """Must catch: a copy that blocks, or goes to memory that is not pinned."""
    on_gpus(1, cases.activations_on_the_host).is_right()


@pytest.mark.parametrize("name", ["hooks", "function", "selective"])
def test_dropout_in_a_recomputation(on_gpus, name):
    """Must catch: a second run that restores the CPU's random state alone."""
    on_gpus(1, cases.recomputed_with_dropout, name).is_right()


@pytest.mark.parametrize("name, kind", POLICIES_BY_KIND)
def test_policies(on_gpus, name, kind):
    """Must catch: gradients that are not unscaled, a scaler that asks the host about each
    gradient (its budget is 3 waits a step), autocast of another device."""
    on_gpus(1, cases.policy_of, name, kind).is_right(3 if POLICIES[name].needs_scale else 0)


def test_float8(on_gpus):
    """Must catch: a scale of a block that is made on the CPU; factors that nothing rounds."""
    on_gpus(1, cases.float8).is_right()


@pytest.mark.parametrize("kind", ["bf16", "eight"])
def test_moments_in_few_bits(on_gpus, kind):
    """Must catch: moments that go through the host, or in 8 bits are asked, in each step, whether
    an element is negative: 2 waits for each parameter."""
    on_gpus(1, cases.moments_in_few_bits, kind).is_right()


def test_stochastic_rounding(on_gpus):
    """Must catch: random bits that come from the CPU."""
    on_gpus(1, cases.stochastic_rounding).is_right()


def test_ledger_and_account(on_gpus):
    """Must catch: a counter of the allocator that is read at another moment than the ledger's."""
    on_gpus(1, cases.ledger_and_account).is_right()


def test_the_pretended_gpu_computes_as_the_cpu(on_gpus):
    """Must catch: a view that becomes a copy in device.cpp, a result in place that gets lost."""
    on_gpus(1, cases.double_precision_is_close).is_right()
