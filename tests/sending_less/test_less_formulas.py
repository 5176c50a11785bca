"""Formulas of chapter 16 beside ranks that send less, beside published numbers, and beside a step
that is put together by hand."""

from functools import partial

import pytest
import torch
from solved import value
from torch.utils._python_dispatch import TorchDispatchMode

from coursekit.lab import ring_bytes
from coursekit.topics.sending_less.published import SAVINGS
from coursekit.topics.sending_less.trainings import WAYS_TO_SEND, WHOLE_STEPS, small_model
from ranklab.measure.communication import CommunicationLog
from shardlab.common.torch_internals import tree_leaves
from shardlab.compression import DiLoCo, OneBitAdam, zero_plus_plus
from shardlab.mesh import Mesh
from shardlab.text import vocabulary_of_text
from shardlab.zero.core_stage3 import fully_shard

SEEN = vocabulary_of_text()


def given_of(way, ranks=4, **more):
    sizes = small_model(SEEN, 0).config.quantities()
    wire = dict(gradient_compressor=way.number, data_parallel=ranks, gradient_element_bytes=4)
    return {**sizes, **wire, "warm_up_share": 0, **way.given, **more}


def tensors_of(state) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


# --- bytes ----------------------------------------------------------------------------------------


def sent_by(way, steps):
    """Bytes that this rank sends in so many steps."""
    net = small_model(SEEN, 0)
    model, optimizer = way.build(net, 1e-3)
    with CommunicationLog() as log:
        for _ in range(steps):
            model(torch.arange(4).view(1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return ring_bytes(log)


@pytest.mark.one_in(3)  # each way on another number of ranks
@pytest.mark.parametrize("name", WAYS_TO_SEND)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_by_the_log(worlds, ranks, name):
    """Must catch: a way without its indices, scales or flags; one of two all-reduces; a share of
    the ranks that does not grow with them; a mean over a run that has other steps."""
    way, steps = WAYS_TO_SEND[name], 50 if name in ("1-bit Adam", "DiLoCo") else 10
    found = worlds(ranks).run(sent_by, way, steps)[0]
    given = given_of(way, ranks, warm_up_share=min(1, WHOLE_STEPS / steps))
    assert found == pytest.approx(steps * value("less_sent_bytes", **given), abs=steps)
    if ranks != 3:  # which does not divide an all-reduce's bytes
        assert found == round(steps * value("less_sent_bytes", **given))


def messages_of_nodes(parts):
    """On rank 0 of two nodes of two: the messages of a step of stage 3, or of ZeRO++."""
    mesh = Mesh(dp=2, tp=2)
    net = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 40))
    groups = dict(inside=mesh.tp.group, across=mesh.dp.group)
    model = zero_plus_plus(net, [net], **groups) if parts else fully_shard(net, [net])
    with CommunicationLog() as log:
        model(torch.ones(2, 40)).sum().backward()
    return [(one.operation, one.group_size, one.nbytes) for one in log.messages]


def test_bytes_between_nodes(worlds):
    """Must catch: scales of blocks left out; a gather of backward that leaves the node; all chunks
    of a node's exchange, also those that stay."""
    sizes = dict(parameters=40 * 50 * 2 + 90, data_parallel=4, ranks_per_node=2)
    sizes |= dict(parameter_element_bytes=4, gradient_element_bytes=4)
    plain, parts = (worlds(4).run(messages_of_nodes, parts)[0] for parts in (False, True))
    reached = sum(nbytes for _, size, nbytes in plain if size == 4) // 2
    assert reached == value("plain_node_bytes", **sizes)
    (weights,) = (nbytes // 2 for _, size, nbytes in parts if size == 4)
    assert weights == value("quantised_weight_bytes", **sizes)
    (*_, gradients) = (nbytes for name, _, nbytes in parts if name.startswith("all_to_all"))
    assert gradients == value("quantised_gradient_bytes", **sizes)  # two ranks, half of it each
    (again,) = (nbytes for name, size, nbytes in parts if name == "all_gather" and size == 2)
    assert again // 2 == value("secondary_bytes", **sizes)
    assert weights + gradients == value("plus_node_bytes", **sizes)


# --- what stays -----------------------------------------------------------------------------------


def kept_by(name):
    """On a rank: bytes that stay after some steps."""
    net = small_model(SEEN, 0)
    model, optimizer = WAYS_TO_SEND[name].build(net, 1e-3)
    tokens = torch.arange(48).view(1, 48)
    for _ in range(2):
        if model is not net:
            model(tokens).sum().backward()
    if model is not net:
        state = model.hook_state_dict()
    else:
        for _ in range(50):
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
        state = optimizer.state_dict()
        state = [state["copies"], state["outer"]] if "outer" in state else state["state"]
    moments = {"1-bit Adam": 2, "DeMo": 1}.get(name, 0)  # instead of AdamW's
    parameters = sum(p.numel() for p in net.parameters())
    return sum(one.nbytes for one in tensors_of(state)) - 4 * moments * parameters


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WAYS_TO_SEND)
def test_bytes_that_stay(worlds, name):
    """Must catch: the error of the part that a rank averages, an outer momentum, second factors or
    whole vectors among them; a moment of Adam counted as an error."""
    found = worlds(4).run(kept_by, name)
    assert {*found} == {value("less_kept_bytes", **given_of(WAYS_TO_SEND[name]))}


def test_what_zero_loses():
    """GPT-2 in fp32 on 8 ranks. Must catch: errors or an optimizer that sends cut in shards; states
    that stay whole though nothing needs them; DeMo with Adam's two moments."""
    whole = value("parameters", model="GPT-2 124M")
    elements = {1: 16 / 8, 2: 16 / 8, 3: 8 + 8 / 8 + 4, 4: 8 + 8 / 8 + 4.5, 6: 16 + 4.5}
    elements |= {7: 13.5, 8: 16 + 4, 9: 16 + 8, 10: 12}
    for number, wanted in elements.items():
        given = dict(model="GPT-2 124M", gradient_compressor=number, data_parallel=8)
        assert value("less_rank_bytes", **given) == pytest.approx(wanted * whole, rel=1e-6)


# --- seconds --------------------------------------------------------------------------------------


class Traffic(TorchDispatchMode):
    """Bytes that operators read and write. Those that write a few rows in place count these, and
    views nothing."""

    nbytes = 0
    GIVEN = (
        "copy_",
        "zero_",
        "fill_",
        "zeros_like",
        "new_zeros",
    )  # they do not read the first
    FEW = ("index_add_", "scatter_add_")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")
        if function.namespace == "aten" and not function.is_view and "empty" not in name:
            read, written = tensors_of((args, kwargs)), tensors_of(out)
            if name in self.GIVEN:
                read = read[1:]
            elif name in self.FEW:
                read, written = read[1:], read[-1:]
            self.nbytes += sum(one.nbytes for one in (*read, *written))
        return out


def moved_by(build, steps=3):
    """On a rank: bytes that operators move in the last of so many steps, for each parameter."""
    net = small_model(SEEN, 0)
    model, optimizer = build(net)
    tokens, counted = torch.arange(48).view(1, 48), Traffic()
    for step in range(1, steps + 1):
        loss = model(tokens).sum()
        with counted if step == steps else torch.enable_grad():
            loss.backward() if model is not net else None
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        with counted if step == steps and model is net else torch.enable_grad():
            optimizer.step()
    return counted.nbytes / sum(p.numel() for p in net.parameters())


def plain(net, kind, **settings):
    return net, kind(net.parameters(), lr=0.1, foreach=False, **settings)


def synchronised(net, every, outer):
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    return net, DiLoCo(sgd, every, *outer)


def one_bit(net, warm_up):
    return net, OneBitAdam(net.parameters(), warm_up=warm_up)


def moved_more(name):
    """On a rank: how much more than without it."""
    if WAYS_TO_SEND[name].number in (1, 2, 3, 4, 5, 7):
        hook = lambda way: moved_by(lambda net: WAYS_TO_SEND[way].build(net, 1e-3))
        return hook(name) - hook("fp32")
    if name == "1-bit Adam":
        return moved_by(partial(one_bit, warm_up=1)) - moved_by(partial(one_bit, warm_up=9))
    if name == "DeMo":
        demo = lambda net: WAYS_TO_SEND[name].build(net, 1e-3)
        return moved_by(demo) - moved_by(partial(plain, kind=torch.optim.SGD, momentum=0.9))
    outer = (0.7, 0.9) if name == "DiLoCo" else (1.0, 0.0)
    each = lambda every: moved_by(partial(synchronised, every=every, outer=outer), steps=4)
    return each(2) - each(9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WAYS_TO_SEND)
def test_passes_over_memory(worlds, name):
    """The formula's numbers are counted here, and rounded. Must catch: a core whose operators move
    more or less by a tenth; a time that every step pays, though ranks meet seldom."""
    way = WAYS_TO_SEND[name]
    times = way.given.get("sync_every", 1)
    found = worlds(4).run(moved_more, name)[0]
    assert times * value("compressor_moved_bytes", **given_of(way)) == pytest.approx(found, rel=0.1)
    later = value("compressor_moved_bytes", **given_of(way, warm_up_share=0.5))
    assert later * (2 if name == "1-bit Adam" else 1) * times == pytest.approx(found, rel=0.1)


STEP = dict(model="GPT-2 124M", data_parallel=8, gradient_element_bytes=4, warm_up_share=0.15)
STEP |= dict(microbatch=8, sequence=1024, accumulation_steps=2, utilisation=0.4)
STEP |= dict(latency_seconds=1e-5, flops_per_second=1e15, memory_bytes_per_second=3e12)


def test_a_step_by_its_parts():
    """Must catch: one microbatch counted; messages that hide under forward too; PowerSGD's second
    all-reduce forgotten; an optimizer's messages that begin before backward ends."""
    psi = value("parameters", model="GPT-2 124M")
    forward = 2 * psi * 8192 / 0.4e15
    for number, rounds, hidden in ((2, 2, 1), (5, 4, 1), (10, 2, 0)):
        given = STEP | dict(gradient_compressor=number, reduce_early=1, link_bytes_per_second=1e8)
        code = value("compressor_moved_bytes", **given) * psi / 3e12
        message = rounds * 7e-5 + value("less_sent_bytes", **given) / 1e8
        wanted = 6 * forward + code + message - hidden * 2 * forward
        assert value("less_step_seconds", **given) == pytest.approx(wanted)
    fast = given | dict(gradient_compressor=2, link_bytes_per_second=1e12)
    assert value("whole_step_seconds", **fast) == pytest.approx(6 * forward)


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("number", range(2, 11))
def test_the_link_on_which_both_are_equal(number, early):
    """Must catch: the code's time left out; a bandwidth at which fp32's bytes are hidden still."""
    given = STEP | dict(gradient_compressor=number, reduce_early=early)
    even = value("break_even_bytes_per_second", **given, link_bytes_per_second=1)
    assert even > 0
    always = even == 1e15  # ranks that meet seldom save latency, too
    assert always == (number in (8, 9) and not early)
    for factor, pays in ((0.999, True), (1.001, always)):
        on = dict(given, link_bytes_per_second=factor * even)
        less, whole = (value(f"{name}_step_seconds", **on) for name in ("less", "whole"))
        assert (less < whole) == pays
    assert value("break_even_bytes_per_second", **given | dict(gradient_compressor=1)) == 0


# --- what others published ------------------------------------------------------------------------


@pytest.mark.parametrize("row", SAVINGS, ids=lambda row: row.name)
def test_published(row):
    """Must catch: a warm-up in 1 bit, a sixteenth of fp32, a message every step, bytes without
    places."""
    assert row.times_less == pytest.approx(row.published, rel=row.within)
