"""send and recv where the backend cannot reach the tensors' device: here the CPU plays the device
that gloo cannot send from."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from ranklab.ranks import RankRaised, staging


def call(name, where):
    return SimpleNamespace(
        name=name, group=None, own=(SimpleNamespace(device=SimpleNamespace(type=where)),)
    )


def test_what_is_staged(monkeypatch):
    """Mutations: collectives staged too, which gloo has for CUDA; sends by NCCL staged; the group's
    backend for another device looked at."""

    def staged(config):
        monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
        return [
            (name, where)
            for name in ("send", "recv", "all_reduce")
            for where in ("cpu", "cuda")
            if staging.must_stage(call(name, where))
        ]

    assert staged("cpu:gloo,cuda:gloo") == [("send", "cuda"), ("recv", "cuda")]
    assert staged("cpu:gloo,cuda:nccl") == staged("cpu:gloo") == []


@contextmanager
def pretending():
    """Within it, on this rank, gloo cannot send from the CPU. Gives the calls that are staged: the
    rank's dispatcher asks staging.py, and takes no argument of a test."""
    through_the_host, found = staging.through_the_host, []

    def counted(function, call, *rest, **named):
        found.append(call.name)
        return through_the_host(function, call, *rest, **named)

    with (
        patch.object(staging, "NOT_SENT_BY_GLOO", ("cpu",)),
        patch.object(staging, "through_the_host", counted),
    ):
        yield found


def ring():
    from ranklab.measure.communication import CommunicationLog

    rank, size = dist.get_rank(), dist.get_world_size()
    pattern = 10 * torch.arange(20.0).view(4, 5)
    # PyTorch's pipelining receives into leaves that require grad
    x, y, z = pattern + rank, torch.zeros(4, 5, requires_grad=True), torch.zeros(5, 4).t()
    with pretending() as staged, CommunicationLog() as log:
        work = dist.isend(x, (rank + 1) % size)
        x.add_(100)  # the message has left
        dist.recv(y, (rank - 1) % size)
        work.wait()
        batch = [
            dist.P2POp(dist.isend, y, (rank + 1) % size),
            dist.P2POp(dist.irecv, z, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return (
        (y - pattern).unique().item(),
        (z - pattern).unique().item(),
        staged,
        [(m.operation, m.nbytes) for m in log.messages],
    )


def test_a_ring(three):
    """Mutations: the copy on the host dropped before it was received, or not copied back; a recv
    that has returned before what it receives is there, or that refuses a leaf which requires grad;
    strides lost; the log sees a message twice, or none."""
    for _ in range(5):
        for rank, (y, z, staged, log) in enumerate(three.run(ring)):
            assert (y, z) == ((rank - 1) % 3, (rank - 2) % 3)
            assert sorted(staged) == ["recv", "recv", "send", "send"]
            assert sorted(log) == [("recv", 80), ("recv", 80), ("send", 80), ("send", 80)]


def test_faults_of_staged_messages(three):
    """Mutations: the error of a staged recv is lost, so that the reader goes on with what was not
    received."""

    def left_alone():
        if dist.get_rank() == 1:
            raise ValueError("mine")
        with pretending():
            dist.recv(torch.zeros(3), 1)
        return "went on"

    with pytest.raises(RankRaised, match="Rank 1 raised ValueError: mine") as caught:
        three.run(left_alone)
    assert "waited in a collective" in str(caught.value) and "had finished" not in str(caught.value)
    assert [y for y, *_ in three.run(ring)] == [2, 0, 1]
