"""How near a virtual H100 is to what was recorded on one and to what others published, and what
each of its constants does."""

from dataclasses import replace
from statistics import median

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from docutils import nodes
from pages import ROOT
from test_virtual_gpu import SIMPLE, spans_of
from test_virtual_race import RECORDED
from told import from_told, valued

from bookkit.recorded import _virtual_races
from bookkit.traces import stored, stored_names, with_error
from coursekit.lab.nccl import NCCLLinks
from coursekit.lab.virtual import gpt_in_bf16, recorded_gpu
from coursekit.recordings.virtual_errors import OF_ONE_GPU, VIRTUAL_ERRORS, errors_of_class
from coursekit.topics.collectives import published
from ranklab.measure.ledger import Ledger
from ranklab.virtual import Links, OutOfMemory, VirtualGPU, VirtualGPUs
from shardlab import zero

LABS = ROOT / "labs"
MOST_OFF = 0.15  # of the recorded or published seconds, at most


def test_rungs_that_nothing_was_fitted_to():
    """Must catch: a constant that fits one half of the rungs alone; a rung left out; every rung
    fitted."""
    held = RECORDED.find("virtual.rung", fitted=False)
    assert len(held) == 6 == len(RECORDED.find("virtual.rung", fitted=True))
    assert all(abs(row.value - 1) <= MOST_OFF for row in held), held


@from_told("name, times, nodes, middle, widest", valued)
def test_messages_take_the_time_of_published_ones(name, times, nodes, middle, widest):
    """Nothing is fitted. Must catch: one protocol for all sizes; a ring of 14 steps for a short
    message; no switch that adds; latencies of a node between nodes."""
    links, n = replace(recorded_gpu(name).links, infiniband=False), 8 * nodes
    nbytes = published.sizes((256 if nodes > 1 else 32) << 10, len(times))
    if times[0] > 1e-2:  # GB/s of the bus
        times = [published.from_bus(size, n, rate) for size, rate in zip(nbytes, times)]
    found = [
        (25e-6 + links.seconds("all_reduce", size, list(range(n)))) / time
        for size, time in zip(nbytes, times)
    ]
    assert middle[0] <= median(found) <= middle[1], found
    assert widest[0] <= min(found) and max(found) <= widest[1], found


def test_a_tree_between_nodes_and_a_ring_for_what_is_gathered():
    """NCCL issue 652. Must catch: a ring alone between nodes, ten times as long; a tree for a
    gather, which has none."""
    links, ranks = recorded_gpu("A100 SXM 40GB").links, list(range(256))
    assert 62e-6 < links.seconds("all_reduce", 128, ranks) < 66e-6
    assert links.seconds("all_gather", 128, ranks) > 200e-6
    assert links.seconds("all_reduce", 1, [3]) == 0
    lone = NCCLLinks(1e9, ranks_per_node=4)
    assert lone.seconds("send", 1_000, [0, 1]) == pytest.approx(1e-6 + lone.node_latency_seconds)


def test_each_kind_of_kernel_has_its_share():
    """Must catch: a copy as slow as a norm; a product whose rows of 16 bytes are taken for odd, or
    odd ones for whole; tensor cores blamed in fp32; a kernel, or one of a list's, without its own
    time."""
    shares = dict(memory_share=0.5, unaligned_share=0.25, product_seconds=2e-6)
    rates = {torch.float32: 1e10, torch.bfloat16: 4e10}
    gpu = replace(SIMPLE, **shares, kernel_seconds=1e-6, flops_per_second=rates)

    def work(x, y, odd, even):
        x + x
        y.copy_(x)
        torch._foreach_add([x, y], 1)
        even @ even
        odd @ odd
        odd.float() @ odd.float()

    def made():
        squares = [torch.ones(size, size, dtype=torch.bfloat16) for size in (1001, 1000)]
        return [torch.ones(1000), torch.ones(1000), *squares]

    spans = [nanoseconds for _, nanoseconds in spans_of(work, gpu, made)[0]]
    add, copy, lists, even, odd, *_, exact = spans
    assert (add, copy, lists) == (1_000 + 2 * 12_000, 1_000 + 8_000, 1_000 + 16_000)
    assert even == 3_000 + 2e9 * 1000**3 / 4e10
    assert odd == exact == 3_000 + round(2e9 * 1001**3 / 1e10)


def test_few_heads_are_as_fast_as_many():
    """Must catch: attention's number a row, whose layout has odd rows where heads are few, taken
    for a matrix: attention of two heads a rank took six times as long."""
    gpu = replace(SIMPLE, unaligned_share=0.25, flops_per_second={torch.bfloat16: 1e9})

    def attend(*shapes):
        for q in shapes:
            F.scaled_dot_product_attention(q, q, q)

    def made():
        return [torch.ones(*sizes, 64, 64, dtype=torch.bfloat16) for sizes in ((4, 2), (1, 8))]

    few, many = (nanoseconds for _, nanoseconds in spans_of(attend, gpu, made)[0])
    assert few == many


def test_messages_slow_the_kernels_beside_them():
    """Must catch: kernels slowed that run before or after the message; a slowing that waits for the
    end of the message, and so hides the wait for it."""
    gpu = replace(SIMPLE, launch_seconds=0, links=Links(1e9, node_latency_seconds=0))
    found = []
    for contention in (0, 0.5):
        with VirtualGPUs(2, replace(gpu, contention=contention)) as own:
            x, y = torch.ones(250_000), torch.ones(50_000)
            with own.step() as step:
                y + y
                message = dist.all_reduce(x, async_op=True)
                y + y
                with torch.cpu.stream(torch.cpu.Stream()):
                    message.wait()
                y + y
                y + y
        found.append([s.end - s.start for s in step.spans if s.stream == "compute"])
    assert found == [4 * [600_000], [600_000, 900_000, 650_000, 600_000]]


def test_a_kernel_of_another_stream_slows_those_of_the_main_one():
    """Kernels of 600 µs: the second, on another stream, runs beside the first.

    Must catch: a stream that computes for nothing; a kernel slowed that runs alone."""
    gpu = replace(SIMPLE, launch_seconds=0, stream_contention=1.0)
    with VirtualGPU(gpu) as own:
        y = torch.ones(50_000)
        with own.step() as step:
            y + y
            with torch.cpu.stream(torch.cpu.Stream()):
                y + y
            y + y
    found = [s.end - s.start for s in step.spans if s.stream == "compute"]
    assert found == 3 * [600_000] and step.end == 1_800_000


@pytest.mark.slow
def test_memory_runs_out_at_the_ledgers_peak():
    """Must catch: a storage that is counted twice when it is filled again, or never given back; the
    host's memory counted; the peak of all time for that of a step."""

    def trained(gpu):
        with VirtualGPUs(8, gpu) as own:
            net = gpt_in_bf16(hidden=64, heads=2, layers=3, vocabulary=256, max_sequence=32)
            with Ledger(net) as ledger:
                units = [net.embedding, *net.blocks, net.head]
                net, adam = zero.shard(net, torch.optim.AdamW, stage=3, units=units, prefetch=True)
                for _ in range(2):
                    if not gpu.memory_bytes:
                        torch.empty(1_000_000)  # and gone
                    line = len(ledger.timeline)
                    with own.step() as step:
                        net(torch.zeros(4, 32, dtype=torch.long)).sum().backward()
                        adam.step()
                        adam.zero_grad()
                most = max(point.bytes.total for point in ledger.timeline[line:])
                assert (step.peak_bytes, own.memory.now) == (most, ledger.bytes.total)
                live = own.memory.now
                host = torch.empty(1_000, pin_memory=True).copy_(torch.empty(1_000))
                host = host, own.on_host(torch.empty(1_000))
                assert own.memory.now == live
        return step.peak_bytes

    card = replace(SIMPLE, host_bytes_per_second=1e9)
    peak = trained(card)
    assert trained(replace(card, memory_bytes=peak)) == peak
    with pytest.raises(OutOfMemory, match="a virtual GPU runs out of memory: it has .* are live."):
        trained(replace(card, memory_bytes=peak - 1))


def test_the_host_dispatches_dtensors_slowly():
    """Must catch: an operator on a DTensor that costs its host no more than a launch; the host of
    a message forgotten."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    gpu = replace(SIMPLE, launch_seconds=0, dtensor_seconds=1e-3, message_seconds=1e-2)
    with VirtualGPUs(2, gpu) as own:
        mesh = init_device_mesh("cpu", (2,))
        x = DTensor.from_local(torch.ones(1), mesh, [Replicate()], run_check=False)
        host = own.clock.host
        x + x
        assert own.clock.host - host == 1_000_000
        host = own.clock.host
        dist.all_reduce(torch.ones(1))
        assert own.clock.host - host >= 10_000_000


def test_the_page_says_how_near_it_is():
    """Must catch: an error of the fitted steps alone, of a class's rates called the clock's, or of
    an older clock; seconds of a step that the card could not hold; a lab that says another error; a
    class that a page does not print."""
    of_classes = {OF_ONE_GPU: RECORDED.find("virtual.rung", fitted=False)}
    for row in RECORDED.find("virtual.published", fitted=False):
        of_classes.setdefault(row.case["speed"], []).append(row)
    for row in RECORDED.find("virtual.unfitted"):
        of_classes.setdefault(row.case["speed"] + ", as it is", []).append(row)
    ratios = {name: [round(row.value, 2) for row in rows] for name, rows in of_classes.items()}
    assert VIRTUAL_ERRORS == {name: (len(of), min(of), max(of)) for name, of in ratios.items()}
    near = f"{errors_of_class()} times their seconds as recorded on an H100"
    table, said = _virtual_races(RECORDED)
    own = errors_of_class("FSDP on H100, as it is")
    assert f"took {near}, and {own} times those of {own.steps} published (FSDP on H100; " in said
    rows = [[cell.astext() for cell in row] for row in table.findall(nodes.row)]
    (ours,) = [row for row in rows if row[2:3] == ["8"] and row[0] == "tensor parallelism"][:1]
    assert ours[4] == "0.79" and ours[-1] == "DTensor"
    for lab in ("05-data-parallelism", "06-zero", "08-pipelines"):
        told = f"took {errors_of_class()} of their recorded seconds"
        assert told in (LABS / f"{lab}.md").read_text("utf-8")


def test_a_trace_in_virtual_time_says_how_near_it_is():
    """Must catch: virtual seconds without their error; an error beside a trace of a CPU."""
    for name in stored_names():
        caption = nodes.container("", nodes.paragraph("", "A step."))
        said = with_error(caption, [name], "page")[-1].astext()
        own = not stored(name).machine and name != "queue"
        assert ("times their seconds as recorded" in said) is own, name
    assert said.endswith("(FSDP on H100; 0.92 to 1.09 with rates fitted to others of the class).")
