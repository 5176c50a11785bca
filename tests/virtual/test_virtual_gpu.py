"""A GPU in virtual time: what each operator, launch, copy of a value, stream and message costs, to
the nanosecond."""

import copy
import importlib
import io  # noqa: F401 (told.md names it)
import json
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial  # noqa: F401 (told.md names it)

import numpy as np  # noqa: F401 (told.md names it)
import pytest
import torch
import torch.distributed as dist
from operators import Operators
from programs import ran
from solved import Given
from told import from_told, valued
from torch import nn

from coursekit.lab.virtual import recorded_gpu
from ranklab.virtual import GPU, Links, NoContents, UnknownSpeed, VirtualGPU, VirtualGPUs
from ranklab.virtual.operators import NOTES, cost
from shardlab.common.collective_wire import all_gather_single

LAUNCH = 5_000  # nanoseconds
SIMPLE = GPU(
    {torch.float32: 1e12, torch.bfloat16: 4e12},
    memory_bytes_per_second=1e9,
    links=Links(1e9, 0.5e9, ranks_per_node=4),
    launch_seconds=LAUNCH * 1e-9,
)


def spans_of(work, gpu=SIMPLE, make=lambda: ()):
    """(name, nanoseconds) of each kernel of the work, and the step."""
    with VirtualGPU(gpu) as own:
        made = make()
        with own.step() as step:
            work(*made)
    return [(span.name, span.end - span.start) for span in step.spans], step


def test_a_stop_on_the_way_in_leaves_nothing_behind(monkeypatch):
    """Mutation: what was entered before the stop stays, and every later virtual GPU of a notebook
    is refused: "this process is rank 0 of 8 already". The first one imports for seconds."""
    make = dist.init_process_group

    @contextmanager
    def stopped(*_):
        raise KeyboardInterrupt
        yield

    def stopped_late(*how, **named):
        make(*how, **named)
        raise KeyboardInterrupt

    for owner, name, stops in (
        ("ranklab.virtual.gpu", "listening", stopped),
        ("torch.distributed", "init_process_group", stopped_late),
    ):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(f"{owner}.{name}", stops)
            with VirtualGPUs(8, SIMPLE):
                raise AssertionError("nothing was stopped")
        assert not dist.is_initialized()
    with VirtualGPUs(8, SIMPLE):
        assert dist.get_world_size() == 8


def test_an_operator_takes_what_is_slower_memory_or_arithmetic():
    """Must catch: the sum of the two times; a bias, an expanded or a written tensor counted
    wrongly; a launch for a view or a plan's shapes; the rate of another dtype; a product in place
    whose operations are not counted."""

    def work(x, w, b):
        x.t().reshape(64, 32)[:2].float()  # views, and a conversion of nothing
        x @ w  # its bytes take longer than its operations
        x.add_(1)  # read and written
        x + b  # b is read once
        torch.relu(x.expand(8, 32, 64))
        torch.zeros(10)
        x.bernoulli_(0.5)  # written alone
        b.random_()
        torch.ones(8, 8, device="meta") @ torch.ones(8, 8, device="meta")  # shapes alone

    made = lambda: (torch.ones(32, 64), torch.ones(64, 16), torch.ones(64))
    found, step = spans_of(work, make=made)
    assert found == [
        ("mm", 4 * (32 * 64 + 64 * 16 + 32 * 16)),
        ("add_", 2 * 8192),
        ("add", 2 * 8192 + 256),
        ("relu", 8192 + 8 * 8192),
        ("zeros", 40),
        ("bernoulli_", 8192),
        ("random_", 256),
    ]
    assert step.launches == 7
    big = lambda dtype: lambda: [torch.ones(8192, 8192, dtype=dtype)] * 2
    for dtype, rate in ((torch.float32, 1000), (torch.bfloat16, 4000)):  # operations a nanosecond
        found, _ = spans_of(torch.mm, GPU(SIMPLE.flops_per_second, 1e12), big(dtype))
        assert found == [("mm", round(2 * 8192**3 / rate))]
    add_product = lambda x, w: torch.empty(8192, 8192).addmm_(x, w)
    found, _ = spans_of(add_product, GPU(SIMPLE.flops_per_second, 1e12), big(torch.float32))
    assert found == [("addmm_", round(2 * 8192**3 / 1000))]
    with pytest.raises(UnknownSpeed, match="no rate for products of torch.float64"):
        spans_of(torch.mm, make=big(torch.float64))


ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD


@pytest.mark.slow
@pytest.mark.one_in(2)
@from_told("make, tensors, elements, launches", valued)
def test_an_update_has_the_launches_that_cuda_has(make, tensors, elements, launches):
    """Must catch: a launch for each parameter where CUDA's default is one for a list; one launch
    for a list that a kernel cannot take whole; PyTorch left changed behind the block."""

    def update(parameters):
        optimizer = make(parameters)
        for _ in range(2):  # the first one makes the states
            with own.step() as step:
                optimizer.step()
        return step.launches

    def drawn():
        parameters = [torch.nn.Parameter(torch.ones(elements)) for _ in range(tensors)]
        for parameter in parameters:
            parameter.grad = torch.ones(elements)
        return parameters

    with VirtualGPU(SIMPLE) as own:
        assert update(drawn()) == launches
    outside = torch.nn.Parameter(torch.ones(1))
    outside.grad = torch.ones(1)
    with Operators() as operators:
        ADAMW([outside]).step()
    assert {"add_", "lerp_"} & {*operators.names()}
    assert not any(name.startswith("_foreach") for name in operators.names())


def test_clipping_and_unscaling_take_lists():
    """Must catch: a launch for each gradient, which CUDA has for no clipping."""

    def clip(parameters):
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        torch.nn.utils.clip_grad_value_(parameters, 1.0)

    def drawn():
        parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(60)]
        for parameter in parameters:
            parameter.grad = torch.ones(4)
        return (parameters,)

    found, step = spans_of(clip, make=drawn)
    names = [name for name, _ in found if name.startswith("_foreach")]
    assert len(names) == 4 and step.launches < 15, found


def worker_of_a_loader():
    from torch.utils.data import DataLoader

    next(iter(DataLoader(torch.ones(4, 2), num_workers=1)))


@from_told("ask, name")
def test_contents_that_nobody_has_are_refused(ask, name):
    """Must catch: PyTorch's DynamicOutputShapeException, "NYI", or a sentence about weak
    dictionaries; tensors outside of the block that are refused, too."""
    with pytest.raises(
        NoContents, match=f"^{re.escape(name)} needs the contents of a tensor, and a virtual"
    ):
        spans_of(ask, make=lambda: [torch.ones(4)])
    assert torch.ones(2).numpy().sum() == 2 and copy.deepcopy(torch.ones(2)).sum() == 2


def test_copies_of_fully_shard_are_read_and_written():
    """Its operators return nothing. Must catch: what they write left out; a kernel of an operator
    that notes a stream."""
    importlib.import_module("torch.distributed.fsdp")  # registers them
    whole, parts = torch.ones(4, 10), [torch.ones(4, 8), torch.ones(4, 2)]
    named = dict(out=parts, dim=1)
    split = torch.ops.fsdp.split_with_sizes_copy.default
    assert cost(split, (whole, [8, 2]), named, None).nbytes == 2 * 160
    named = dict(out=whole)
    assert cost(torch.ops.fsdp.chunk_cat.default, (parts, 0, 4), named, None).nbytes == 2 * 160
    if note := getattr(torch.ops.fsdp, NOTES, None):  # PyTorch 2.15
        assert cost(note.default, (whole, 0, 0, 1), {}, None) is None


def test_products_in_fp32_have_the_rate_that_pytorch_is_told():
    """Must catch: TF32 where PyTorch computes in fp32; the switch of products taken for that of
    convolutions, which is on by default; the rate of a GPU that has no TF32."""
    bare = dict(product_seconds=0.0, kernel_seconds=0.0, unaligned_share=1.0)
    h100, v100, b200 = (
        replace(recorded_gpu(name), **bare)
        for name in ("H100 SXM 80GB", "V100 SXM2 32GB", "B200 SXM")
    )
    made = lambda: (torch.ones(4096, 4096), torch.ones(1, 512, 64, 64), torch.ones(512, 512, 3, 3))
    work = lambda x, image, w: (x @ x, torch.conv2d(image, w))
    for allowed, gpu, rates in (
        (False, h100, (67, 494.5)),
        (True, h100, (494.5, 494.5)),
        (True, v100, (15.7, 15.7)),
    ):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            found = [nanoseconds for _, nanoseconds in spans_of(work, gpu, made)[0]]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        flops = 2 * 4096**3, 2 * 62 * 62 * 512 * 512 * 9
        assert found == [round(n / (0.76e3 * rate)) for n, rate in zip(flops, rates)]
    assert recorded_gpu("T4").flops_per_second[torch.float32] == 0.76 * 8.1e12
    with pytest.raises(UnknownSpeed, match="B200 SXM has no rate for products of torch.float32"):
        spans_of(work, b200, made)


def test_attention_computes_the_half_that_the_mask_shows():
    """Must catch: the rates of a causal and of a full attention exchanged; queries that share a key
    counted once; attention_share left out, or taken by products too."""
    found = []
    for causal, groups, share in ((False, 4, 1), (True, 4, 1), (True, 2, 1), (True, 4, 0.25)):
        made = lambda groups=groups: [torch.ones(1, heads, 4096, 64) for heads in (4, groups)]
        work = lambda q, k, causal=causal: nn.functional.scaled_dot_product_attention(
            q, k, k, is_causal=causal, enable_gqa=True
        )
        fast = GPU(SIMPLE.flops_per_second, 1e15, attention_share=share)
        (span,), _ = spans_of(work, fast, made)
        found.append(span[1])
        assert fast.operator_nanoseconds(1000, 0, torch.float32) == 1
    full = 2 * 2 * 4 * 4096 * 4096 * 64 / 1000
    assert found == [round(share * full) for share in (1, 0.5, 0.5, 2)]


def test_the_host_runs_ahead_until_it_wants_a_value():
    """Must catch: a launch that waits for the kernel before; .item() that waits for nothing, or for
    a number that the host made itself; a step that ends before its host."""

    def long_kernels(x):
        for _ in range(3):
            x.add_(1)

    made = lambda: [torch.ones(100_000)]  # 800 us a kernel
    _, step = spans_of(long_kernels, make=made)
    assert (step.end, step.host_waits) == (LAUNCH + 3 * 800_000, 0)
    assert step.idle_seconds("host") == 5e-6
    _, step = spans_of(lambda x: [x.add_(1) for _ in range(9)], make=lambda: [torch.ones(1)])
    assert step.end == 9 * LAUNCH + 8  # the host is the slower one
    assert step.idle_seconds("host") == pytest.approx(9 * 5e-6 - 8 * 8e-9)

    def reads(x):
        x.add_(1)
        counter = torch.tensor(1.0)
        counter += 1
        assert counter.item() == 2
        assert x[0].item() == 1
        x.add_(1)

    _, step = spans_of(reads, make=made)
    assert (step.end, step.host_waits) == (2 * (LAUNCH + 800_000), 1)


def test_streams_run_side_by_side_and_wait_for_events():
    """Must catch: one stream for all; an event that nobody waits for, or that stands for what comes
    after it; a stream that waits for the host of another time."""
    before = torch.cpu.Stream

    def work(x, y):
        there = torch.cpu.Stream()
        x.add_(1)  # 800 us on the main stream, from 5 us on
        done = torch.cpu.current_stream().record_event()
        x.add_(1)  # until 1,605
        with torch.cpu.stream(there):
            there.wait_event(done)
            y.add_(1)  # 400 us, from 805 on
        torch.cpu.current_stream().wait_stream(there)
        x.add_(1)
        torch.cpu.synchronize()

    found, step = spans_of(work, make=lambda: (torch.ones(100_000), torch.ones(50_000)))
    ends = [(span.stream, span.end) for span in step.spans]
    assert ends == [
        ("compute", 805_000),
        ("compute", 1_605_000),
        ("stream 1", 1_205_000),
        ("compute", 2_405_000),
    ]
    assert step.idle_seconds("other stream") == 0
    assert torch.cpu.Stream is before


def test_a_message_travels_beside_computing_until_somebody_waits():
    """Must catch: a message that starts before its tensor is there, or beside the one before it on
    its communicator; wait() that does not wait, or waits with the host."""
    pass_ns = 3 * 3_400 + 3 * 100_000  # of 400 kB in a ring of 4 on links of 1 GB/s

    def work(x, y, whole):
        x.add_(1)  # until 805 us
        works = [dist.all_reduce(x, async_op=True)]
        works.append(all_gather_single(whole, y, async_op=True))
        y.mul_(2)  # 200 us beside the messages
        for each in works:
            each.wait()
        x.add_(1)

    with VirtualGPUs(4, SIMPLE) as gpu:
        made = torch.ones(100_000), torch.ones(25_000), torch.ones(100_000)
        with gpu.step() as step:
            work(*made)
    sent = [span for span in step.spans if span.stream != "compute"]
    assert [(span.name, span.start, span.end) for span in sent] == [
        ("all_reduce", 805_000, 805_000 + 2 * pass_ns),
        ("all_gather", 805_000 + 2 * pass_ns, 805_000 + 3 * pass_ns),
    ]
    assert step.end == 805_000 + 3 * pass_ns + 800_000
    assert step.exposed_seconds == pytest.approx((3 * pass_ns - 200_000) / 1e9)
    assert step.host_waits == 0
    events = {event["name"]: event for event in step.trace()}
    assert events["all_gather"]["dur"] == pass_ns / 1000
    assert json.dumps(step.trace())
    assert "waiting for a message" in str(step)


@pytest.mark.parametrize("ranks", (2, 4, 8, 16))
def test_links_take_the_time_of_the_books_formulas(ranks):
    """Must catch: the bandwidth of one card for a ring through all cards of a node; latencies of
    all steps taken from one link."""
    links, nbytes, nodes = SIMPLE.links, 1_000_000, max(1, ranks // 4)
    given = dict(
        node_latency_seconds=links.node_latency_seconds,
        node_bytes_per_second=links.node_bytes_per_second,
        latency_seconds=links.network_latency_seconds,
        link_bytes_per_second=links.network_bytes_per_second,
        ranks=ranks,
        ranks_per_node=min(ranks, 4),
        message_elements=nbytes,
        message_element_bytes=1,
    )
    whole = Given(**given).nodes_ring_all_reduce_seconds
    for name, share in (("all_reduce", 1), ("all_gather", 1 / 2), ("reduce_scatter", 1 / 2)):
        assert links.seconds(name, nbytes, list(range(ranks))) == pytest.approx(share * whole)
    assert nodes == links.nodes(list(range(ranks)))


def test_copies_of_one_direction_follow_each_other():
    """Must catch: two copies to the host at once; one that waits for a copy from the host; a host
    that goes on after a blocking copy; time for what the host computes."""
    gpu = GPU({}, 1e9, launch_seconds=0, host_bytes_per_second=0.5e9)

    def work():
        x, host = torch.ones(1000), [torch.empty(1000, pin_memory=True) for _ in range(2)]
        for to, source in ((host[0], x), (x, host[1]), (host[1], x)):
            stream = torch.cpu.Stream()
            stream.wait_stream(torch.cpu.current_stream())
            with torch.cpu.stream(stream):
                to.copy_(source, non_blocking=True)
        host[0].add_(host[1])
        host[0].view(-1).copy_(x)

    _, step = spans_of(work, gpu)
    copies = [(span.name, span.start, span.end) for span in step.spans[1:]]
    out, back = "copy to the host", "copy from the host"
    assert copies[:2] == [(out, 4_000, 12_000), (back, 4_000, 12_000)]
    assert copies[2:] == [(out, 12_000, 20_000), (out, 20_000, 28_000)]
    assert step.host_waits == 1


STOPPED = """
import signal, time, torch
from torch import distributed as dist
from torch._library.simple_registry import singleton
from coursekit.lab.virtual import virtual_gpus

def destroy():
    signal.raise_signal(signal.SIGINT)
    of_torch[1]()

def find(name):
    global after
    after -= 1
    if after == 0:
        signal.raise_signal(signal.SIGINT)
    return of_torch[0](name)

of_torch, singleton.find = (singleton.find, dist.destroy_process_group), find
after, stops, left = 0, 0, 0
for lookups in range(1, 21):
    try:
        with virtual_gpus(8):
            layer, x = torch.nn.Linear(8, 8, dtype=torch.bfloat16), torch.ones(2, 3, 8)
            x, after = x.to(torch.bfloat16), lookups
            layer(x).sum().backward()
        time.sleep(0.1)
    except KeyboardInterrupt:
        stops += 1
dist.destroy_process_group = destroy
for leaving in range(2):
    try:
        with virtual_gpus(8):
            pass
        time.sleep(0.1)
    except KeyboardInterrupt:
        left += 1
print(stops > 0, left, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.slow
def test_a_stop_within_an_operator_leaves_the_process_alive():
    """Must catch: KeyboardInterrupt where C++ has called Python and knows no error, which ended a
    notebook's kernel; all stops lost; a handler that stays; a stop while virtual GPUs
    are left, after which they could not be entered again."""
    found = ran(sys.executable, "-c", STOPPED)
    assert found.stdout == "True 2 True\n", found.stderr[-2000:]
