"""Stored traces, and the card that draws them."""

import json
import re
from xml.etree import ElementTree

import pytest

from bookkit import trace_images, traces
from coursekit.topics.where_the_time_goes.slow_programs import ANSWERS
from coursekit.topics.where_the_time_goes.traces import (
    FOLDER,
    STRAGGLER,
    TRACES,
    VIRTUAL,
    joined_spans,
)
from ranklab.measure.slim_trace import COMPUTES, SlimSpan, SlimTrace, SpanKind


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    ["queue", "data-parallel", "zero-3-prefetch", "tensor-parallel-chunks", "offload-inputs"],
)
def test_a_virtual_trace_is_the_same_again(name):
    """Must catch: a stored trace that is not what today's code does; one that depends on the
    machine; a layer that is recomputed, drawn as backward."""
    stored = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert VIRTUAL[name]().as_json() == stored, f"python tools/store_traces.py {name}"


def test_all_are_stored_and_small():
    """Must catch: a trace that nobody can make, or nobody stored; a kernel for each of thousands;
    a wall-clock trace that does not say on what it was measured."""
    assert traces.stored_names() == sorted(TRACES)
    for name in TRACES:
        assert (FOLDER / f"{name}.json").stat().st_size < 16_000
        assert bool(traces.stored(name).machine) == (name not in VIRTUAL)


def test_the_straggler_is_who_computes_longest():
    """Must catch: ranks that are equally fast; lanes of another order."""
    trace = traces.stored("eight-ranks")
    lanes = [trace.lanes.index(f"rank {rank}, compute") for rank in range(8)]
    work = [sum(s.length for s in trace.of(*COMPUTES[:2], lanes=[lane])) for lane in lanes]
    assert work.index(max(work)) == STRAGGLER and len(set(work)) == 2
    assert set(ANSWERS.values()) == {1, 3}


def test_what_pages_say_of_a_trace():
    """Must catch: a copy that hides under another; a message that is hidden and counted; the idle
    time of one rank for the mean of all."""
    kinds = SlimTrace().kinds
    forward, message, copy = (kinds.index(kind) for kind in ("forward", "message", "copy"))
    spans = [SlimSpan(0, 0, 50, 0, forward), SlimSpan(1, 40, 20, 0, message)]
    spans += [SlimSpan(1, 55, 10, 0, copy), SlimSpan(0, 90, 10, 0, forward)]
    trace = SlimTrace("t", unit=1e-3, lanes=["compute", "messages"], names=["x"], spans=spans)
    said = {what: of(trace) for what, of in traces.SAYS.items()}
    assert said == {"step": "100 ms", "exposed": "15.0%", "idle": "40.0%"}
    other = SlimSpan(2, 0, 100, 0, forward)
    assert traces.idle(SlimTrace("t", spans=[*spans, other])) == pytest.approx(0.2)


def test_spans_that_are_near_are_one_shape():
    """Must catch: a shape for each of a thousand spans; a gap of a pixel that is lost; a span
    outside of what is seen."""
    near = [SlimSpan(0, 10 * k, 9, 0, 0) for k in range(1000)]
    trace = SlimTrace("t", unit=1e-6, lanes=["host"], names=["mm"], spans=near)
    whole = traces.shape(trace, 0, "forward", 0, trace.seconds)
    assert whole == "M0.0 0H1000.0v16H0.0z"
    zoomed = traces.shape(trace, 0, "forward", 0.001, 0.00102)
    assert zoomed == "M0.0 0H450.0v16H0.0zM500.0 0H950.0v16H500.0zM1000.0 0H1000.0v16H1000.0z"
    assert len(joined_spans(trace, 1).spans) == 1000 and len(joined_spans(trace, 2).spans) == 1


def test_arrows_lead_from_launches_to_kernels():
    """Must catch: an arrow from a launch's start, or to another kernel; arrows outside of what is
    seen; hundreds of them at once."""
    trace = traces.stored("queue")
    d = traces.arrows(trace, 0, trace.seconds)
    ends = [tuple(map(float, pair)) for pair in re.findall(r"M([\d.]+) 12L([\d.]+) \d+", d)]
    ahead = [round((right - left) / 1000 * trace.seconds * 1e6) for left, right in ends]
    assert ahead == [0, 15, 30] + [45 - k for k in range(6)] + [0] * 6
    assert traces.arrows(trace, 0, 8e-6).count("M") == 1
    launch, kernel = SpanKind.LAUNCH, SpanKind.FORWARD
    number = [trace.kinds.index(kind) for kind in (launch, kernel)]
    many = [
        span
        for k in range(traces.ARROWS + 1)
        for span in (
            SlimSpan(0, 9 * k, 5, 0, number[0]),
            SlimSpan(1, 9 * k + 5, 2, 0, number[1], 2 * k),
        )
    ]
    trace = SlimTrace("t", unit=1e-6, lanes=["host", "GPU"], names=["x"], spans=many)
    assert traces.arrows(trace, 0, trace.seconds) == ""
    assert traces.arrows(trace, 0, 0.5 * trace.seconds).count("M") == 20
    assert "from a launch to its kernel" in traces.card("trace-0", ["queue", "zero-3"])
    assert "trace-arrows" not in traces.card("trace-0", ["zero-3"])


def test_a_card_stands_without_a_script():
    """Must catch: two traces on two scales; data that ends the script; a lane that is only in the
    drawing."""
    card = traces.card("trace-0", ["zero-3", "zero-3-prefetch"])
    right = [
        max(map(float, re.findall(r"H([\d.]+)v", part))) for part in card.split("<svg viewBox")[1:]
    ]
    seconds = [traces.stored(name).seconds for name in ("zero-3", "zero-3-prefetch")]
    assert right[0] == 1000 and right[1] == pytest.approx(1000 * seconds[1] / seconds[0], abs=0.2)
    assert card.count("<caption>") == 2 and "<td>message</td>" in card
    data = re.search(r'class="trace-data">(.*?)</script>', card)[1]
    assert [one["lanes"] for one in json.loads(data)] == [["compute", "messages"]] * 2
    assert traces.axis(0.0181).count("span") == 2 * 4 and "15 ms" in traces.axis(0.0181)


@pytest.mark.parametrize("names", [["offload", "offload-inputs"], ["pipeline"]])
def test_an_image_has_what_a_card_has(names):
    """Must catch: a lane, a trace or a kind that only the card draws; a scale for each trace; the
    colours of another theme; a file that is no SVG."""
    image = trace_images.svg(names, "light")
    found = traces.traces(names)
    seconds = max(trace.seconds for trace in found)
    texts = "".join(ElementTree.fromstring(image).itertext())
    for trace in found:
        assert traces.heading(trace) in texts and all(lane in texts for lane in trace.lanes)
        for lane in range(len(trace.lanes)):
            for kind in traces.kinds_of(trace):
                assert traces.shape(trace, lane, kind, 0, seconds) in image
                assert traces.LOOKS[kind][0] in texts
    assert trace_images.svg(names, "dark") != image
