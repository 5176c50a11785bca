"""Weighing modules from elsewhere, and adding up to what the driver prints."""

import pytest
import torch

from ranklab.measure.cuda import UNEXPLAINED, CudaAccount
from ranklab.measure.ledger import Ledger
from ranklab.measure.weigh import storage_bytes, weigh
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig


def test_a_module_of_the_readers_own():
    """Must catch: a child's parameters counted again in its parent, a buffer taken for a parameter,
    or for an activation because batch norm keeps it for backward, an activation counted
    elsewhere."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.GELU())
    lines = {line.module: line for line in weigh(model, torch.randn(3, 5))}
    # the input it keeps, and its output, which the norm keeps
    assert lines["0"][2:] == (4 * (35 + 7), 0, 4 * 15 + 4 * 21)
    assert lines["1"].parameters == 4 * 14 and lines["1"].buffers == 4 * 14 + 8
    # output kept by GELU, and the batch's mean and inverse deviation
    assert lines["1"].activations == 4 * (21 + 2 * 7)
    assert sum(line.parameters for line in lines.values()) == sum(
        p.nbytes for p in model.parameters()
    )
    assert set(lines) == {"0", "1"}  # nothing is left over for the whole


def test_a_tied_weight_counts_once_and_fake_weighs_like_real():
    """Must catch: the tied head counted twice; a fake tensor's storage taken for empty."""
    config = GPTConfig(layers=2, hidden=24, heads=4, vocabulary=53, max_sequence=16)
    real = weigh(GPT(config), torch.zeros(2, 5, dtype=torch.long))
    with FakeTensorMode():
        fake = weigh(GPT(config), torch.zeros(2, 5, dtype=torch.long))
    assert real == fake
    assert sum(line.parameters for line in real) == sum(p.nbytes for p in GPT(config).parameters())


def test_bytes_behind_tensors():
    """Must catch: a view counted as memory, a slice counted as large as it looks, tensors of a
    generator that take each other's place."""
    six = torch.zeros(6, dtype=torch.float16)
    assert (
        storage_bytes([six])
        == storage_bytes([six[:3]])
        == storage_bytes([six, six[:3], six[None]])
        == 12
    )
    assert storage_bytes(torch.zeros(2) for _ in range(5)) == 40
    assert storage_bytes([]) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: make gpu records it")
def test_the_account_of_a_step_on_a_gpu():
    """Must catch: a ledger on CUDA that misses tensors: what is not explained would be of the size
    of one."""
    config = GPTConfig(layers=2, hidden=64, heads=4, vocabulary=1_000, max_sequence=64)
    model = GPT(config).cuda()
    tokens = torch.zeros(2, 64, dtype=torch.long, device="cuda")
    with Ledger(model, device="cuda") as ledger, CudaAccount(ledger) as account:
        model(tokens).sum().backward()
    rows = dict(account.rows())
    assert 0 <= rows[UNEXPLAINED] < 2 * 64 * 1_000 * 4
    assert min(rows.values()) >= 0
