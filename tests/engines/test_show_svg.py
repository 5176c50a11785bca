"""The pictures of explorers in notebooks: SVG that is drawn to scale, says in words what it shows,
and needs nothing of the page around it. tests/browser/test_explorer.py compares its words with
those of the pages."""

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from coursekit.formulas.events import COMPUTE, operations, play, waiting
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as
from coursekit.show.palette import MEMORY
from coursekit.show.spec import fill_in
from coursekit.show.svg import drawings
from coursekit.show.svg.canvas import SVG_WIDTH, Canvas
from coursekit.show.svg.curves import Scale, curves_svg, range_of
from shardlab.pipelines.simulation import in_flight

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name, measured=None, **moves):
    """(spec, what it computes, the roots of its pictures) of an explorer with these values."""
    spec = EXPLORERS[name]
    values = spec.start()
    for quantity, value in moves.items():
        values = spec.move(values, quantity, value)
    shown = spec.compute(values)
    made = [drawing.svg(spec.say(shown)) for drawing in drawings(spec, shown, measured)]
    return spec, shown, [ElementTree.fromstring(text) for text in made]


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def boxes(root, names=""):
    """(name, left, top, width, height) of the boxes that have a name with these words in it."""
    found = []
    for box in root.iter(f"{SVG}rect"):
        name = box.findtext(f"{SVG}title", "")
        if name and names in name:
            found.append((name, *(float(box.get(k)) for k in ("x", "y", "width", "height"))))
    return found


@pytest.mark.parametrize("name", EXPLORERS)
def test_each_picture_is_one_svg_that_says_what_it_shows(name):
    """Must catch: words that are not escaped (an `&` in a title); a picture without its title; a
    script, or a pattern with an id, which is another picture's in the same notebook."""
    spec, shown, roots = drawn(name)
    assert len(roots) == len(spec.pictures)
    for picture, root in zip(spec.pictures, roots):
        assert (root.get("role"), root[0].tag, root[1].tag) == ("img", f"{SVG}title", f"{SVG}desc")
        assert (root[0].text, root[1].text) == (picture.title, spec.say(shown))
        whole = ElementTree.tostring(root, encoding="unicode")
        assert not re.search(
            r"\bid=|url\(|href|<(?:\w+:)?(?:script|style|image|foreignObject)", whole
        )
        assert not re.search(r"\b(?:nan|inf|None)\b", re.sub(r">[^<]*<", "><", whole))
    again = [ElementTree.tostring(root) for root in drawn(name)[2]]
    assert again == [ElementTree.tostring(root) for root in roots]


def test_what_is_written_is_text_and_not_markup():
    """Must catch: words or a title put in as they are."""
    canvas = Canvas("a < b & c", 20)
    canvas.text("<img src=x>", 0, 10)
    root = ElementTree.fromstring(canvas.svg("1 < 2"))
    assert (root[0].text, root[1].text, texts(root)) == ("a < b & c", "1 < 2", ["<img src=x>"])


@pytest.mark.parametrize("name", EXPLORERS)
def test_words_stay_inside_and_take_the_colour_around_them(name):
    """Must catch: a label that leaves the picture; ink that only a light page can carry."""
    for root in drawn(name)[2]:
        height = float(root.get("height"))
        (words,) = root.findall(f"{SVG}g")
        assert words.get("fill") == "currentColor"
        for text in root.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x")) <= SVG_WIDTH and 0 < float(text.get("y")) <= height, (
                text.text
            )
            assert text.get("fill") in (None, "#c75800", "#fff")  # a warning, on a full fill


# ---------------------------------------------------------------- bytes


def test_parts_are_to_scale_from_zero():
    """Must catch: parts that begin at zero, or in another order; one scale for the card and one
    for the bytes; a total that is not the formula's."""
    spec, shown, (root,) = drawn("does-it-fit", gpus_per_copy=2)
    parts, found = spec.pictures[0].parts, boxes(root, "predicted")
    scale = found[0][3] / shown[parts[0].quantity]
    end = 1.0
    for part, (name, left, _, width, _) in zip(parts, found):
        size = shown[part.quantity]
        assert f"= {size:,} B" in name and part.label in name
        assert left == pytest.approx(end, abs=0.06)
        assert width == pytest.approx(scale * size, abs=0.01)
        end += width
    words = texts(root)
    for part in parts:
        assert f"{part.label} {format_as(shown[part.quantity], 'decimal bytes')}" in words
    total, card = shown["states_bytes_per_gpu"], shown["gpu_memory_bytes"]
    assert format_as(total, "decimal bytes") in words and "85.1 GB card" in words
    assert f"{format_as(card - total, 'decimal bytes')} free" in words
    line = next(path for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "2.5")
    at = float(re.match(r"M([\d.]+)", line.get("d"))[1])
    assert at == pytest.approx(1 + scale * card, abs=0.1)


def test_too_much_is_hatched_and_said():
    """Must catch: the card's line moved to the end of the bytes; "free" for what is missing."""
    spec, shown, (root,) = drawn("does-it-fit")
    more = shown["states_bytes_per_gpu"] - shown["gpu_memory_bytes"]
    assert more > 0 and f"{format_as(more, 'decimal bytes')} too much" in texts(root)
    assert any(path.get("stroke") == "#c75800" for path in root.iter(f"{SVG}path"))


def test_a_card_far_away_is_named_at_the_edge():
    """Must catch: a bar of a pixel beside a card of a thousand times its bytes."""
    spec, shown, (root,) = drawn("does-it-fit", layers=1, hidden=64, vocabulary=64, gpus_per_copy=8)
    assert shown["gpu_memory_bytes"] > 1000 * shown["states_bytes_per_gpu"]
    assert any("85.1 GB card: far to the right" in text for text in texts(root))
    assert sum(width for *_, width, _ in boxes(root, "predicted")) > SVG_WIDTH / 2


def test_what_was_measured_fills_the_outline():
    """Must catch: measured bytes given to another part; the prediction filled, so that it hides
    the measurement; "the same" beside another number."""
    spec = EXPLORERS["does-it-fit"]
    first, second, *_ = [part.quantity for part in spec.pictures[0].parts]
    shown = spec.compute(spec.start())
    measured = {first: shown[first], second: 2 * shown[second]}
    _, _, (root,) = drawn("does-it-fit", measured)
    found = boxes(root, "measured")
    assert [width for _, _, _, width, _ in found] == pytest.approx(
        [boxes(root, "predicted")[0][3], 2 * boxes(root, "predicted")[1][3]], abs=0.01
    )
    words = " ".join(texts(root))
    assert words.count("measured the same") == 1
    assert f"measured {format_as(measured[second], 'decimal bytes')}" in words
    fills = [box.get("fill") for box in root.iter(f"{SVG}rect") if box.findtext(f"{SVG}title")]
    assert fills.count("none") == 2 and MEMORY["parameters"].light in fills


def test_words_at_the_right_edge_end_there():
    """Must catch: words whose place comes from an estimated width, cut off in a wider font."""
    canvas = Canvas("a picture", 100)
    assert canvas.label("moments 4.90 MB, measured the same", 500, 10)
    assert not canvas.label("short", 575, 30) and not canvas.label("short", 200, 50)
    canvas.label("in the middle of the edge", 600, 70, "middle")
    places = [re.search(r'x="([^"]+)".* text-anchor="(\w+)"', words) for words in canvas.words]
    ends, starts = ("620", "end"), [("575", "start"), ("200", "start")]
    assert [place.groups() for place in places] == [ends, *starts, ends]


def test_columns_are_stacked_from_zero():
    """Must catch: parts of a column beside one another; a column from the top; the last column
    named as the highest."""
    spec, shown, (_, root) = drawn("where-the-memory-goes")
    columns = spec.pictures[1].shown(shown)
    ground = 206
    for column in columns:
        level = ground
        for part in column.parts:
            if not shown[part.quantity]:
                continue
            (found,) = boxes(root, f"{column.name}, {part.label}: ")
            assert found[2] + found[4] == pytest.approx(level, abs=0.11)
            level = found[2]
    totals = [shown[column.total] for column in columns]
    assert f"peak {format_as(max(totals), 'decimal bytes')}" in texts(root)
    tall = {name.split(",")[0]: ground - top for name, _, top, _, _ in boxes(root)}
    highest = columns[totals.index(max(totals))].name
    assert max(tall, key=tall.get) == highest


# ---------------------------------------------------------------- time


def test_a_duration_is_where_it_belongs():
    """Must catch: an axis that is linear; a measurement that hides the prediction; a duration
    beyond the end drawn outside."""
    spec = EXPLORERS["fits-and-how-long"]
    picture = spec.pictures[1]
    _, shown, (_, root) = drawn("fits-and-how-long", {"training_seconds": 86_400})
    ring, disc = root.findall(f"{SVG}circle")
    share = math.log(86_400 / picture.least) / math.log(picture.most / picture.least)
    assert float(disc.get("cx")) == pytest.approx(10 + (SVG_WIDTH - 20) * share, abs=0.1)
    assert ring.get("fill") == "none" != disc.get("fill")
    assert "1 day measured" in texts(root) and "28.5 days predicted" in texts(root)
    _, _, (_, far) = drawn("fits-and-how-long", {"training_seconds": 1e14})
    assert len(far.findall(f"{SVG}circle")) == 1 and "3.17e6 years measured" in texts(far)


WITH_STREAMS = [
    (name, place)
    for name, spec in EXPLORERS.items()
    for place, picture in enumerate(spec.pictures)
    if picture.kind == "streams"
]


@pytest.mark.parametrize(("name", "place"), WITH_STREAMS)
def test_streams_are_the_events(name, place):
    """Must catch: a box that starts at 0; the link's boxes in the upper row; an end that is not the
    simulator's."""
    spec, shown, roots = drawn(name)
    root = roots[place]
    ran = play(operations(spec.pictures[place].step, shown))
    wanted = [(one.stream != COMPUTE, one.start, one.end) for one in ran if one.end > one.start]
    found = [(top > 40, left, left + width) for _, left, top, width, _ in boxes(root, " on")]
    assert len(found) == len(wanted)
    most = max(end for *_, end in wanted)
    scale = (max(end for *_, end in found) - 68) / most
    for got, want in zip(sorted(found), sorted(wanted)):
        assert got[0] == want[0]
        assert got[1:] == pytest.approx([68 + scale * seconds for seconds in want[1:]], abs=0.11)
    idle = sum(end - start for _, start, end in waiting(ran))
    said = f"{format_as(idle, 'short duration')} of {format_as(most, 'short duration')}"
    assert f"{said} {spec.pictures[place].idle}" in texts(root)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_rows_of_a_schedule_are_the_spans(number):
    """Must catch: rows upside down; a gradient of the weights drawn as one of the input; what
    another rank holds."""
    spec, shown, (root,) = drawn("schedule", schedule=number, transfer_seconds=0.002)
    picture = spec.pictures[0]
    spans = picture.timeline(shown).spans
    tops = sorted({top for _, _, top, _, _ in boxes(root, "microbatch")})
    assert len(tops) == len(spans)
    for top, own in zip(tops, spans):
        row = sorted(box for box in boxes(root, "microbatch") if box[2] == top)
        assert len(row) == len([span for span in own if span.end > span.begin])
        row.sort(key=lambda box: box[1])
        scale = (row[-1][1] + row[-1][3] - 16) / own[-1].end
        for box, span in zip(row, own):
            assert box[1] == pytest.approx(16 + scale * span.begin, abs=0.2)
            kind = dict(F="forward", B="backward", I="of the input", W="of the weights")
            stage, _, microbatch = span.action
            assert box[0].startswith(f"stage {stage}, ") and kind[span.action.kind.value] in box[0]
            assert box[0].endswith(f"microbatch {microbatch}")
    words = texts(root)
    for most in in_flight(picture.plan(shown)):
        assert str(most) in words


# ---------------------------------------------------------------- curves


def lines_of(root):
    return {
        path.get("data-line"): [
            tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path.get("d"))
        ]
        for path in root.iter(f"{SVG}path")
        if path.get("data-line")
    }


def test_lines_are_the_formulas():
    """Must catch: a line that is another's; the hierarchical line with one rank on a node; measured
    points beside another line; the reader's point as a disc over them."""
    name = "nodes_ring_all_reduce_seconds"
    measured = {name: [(2**16, 210e-6), (2**30, 2.5)]}
    spec, shown, (root,) = drawn("collective-cost", measured)
    picture, (_, _, (plain,)) = spec.pictures[0], drawn("collective-cost")
    swept = list(spec.swept(picture, shown))
    points, xs, ys = lines_of(root), set(), set()
    for line in picture.lines:
        for (stop, found), (x, y) in zip(swept, points[line.name]):
            xs.add((math.log(stop), x))
            ys.add((math.log(found[line.name]), y))
    for pairs in (xs, ys):
        (low, start), (high, end) = min(pairs), max(pairs)
        for at, pixel in pairs:
            share = (at - low) / (high - low)
            assert pixel == pytest.approx(start + (end - start) * share, abs=0.15)
    paths = [*root.iter(f"{SVG}path")]
    marks = [path for path in paths if path.get("data-measured")]
    colours = {p.get("data-line"): p.get("stroke") for p in paths if p.get("data-line")}
    assert [mark.get("fill") for mark in marks] == 2 * [colours[name]]
    assert len(set(colours.values())) == 4
    assert "lines: predicted, marks: measured" in texts(root) and "573 µs" in texts(root)
    assert "lines: predicted, marks: measured" not in texts(plain)
    fill = [root.find(f"{SVG}circle").get("fill") for root in (root, plain)]
    assert fill[0] == "none" != fill[1]
    alone = drawn("collective-cost", ranks_per_node=1)[2][0]
    assert "hierarchical" not in texts(alone) and "hierarchical" in texts(plain)


def test_words_at_the_ends_of_lines_are_apart():
    """Must catch: words where the lines end; ring and hierarchical end within a few pixels."""
    spec, shown, (root,) = drawn("collective-cost")
    names = {line.label for line in spec.pictures[0].lines}
    levels = sorted(float(text.get("y")) for text in root.iter(f"{SVG}text") if text.text in names)
    assert len(levels) == 4
    assert min(two - one for one, two in zip(levels, levels[1:])) >= 15.9


def test_axes_hold_what_was_measured():
    """Must catch: a range around the lines only, or of the stops only; a measured point that a
    logarithmic axis cannot show, dropped; a linear axis that starts at the smallest value."""
    low = (0.01, 1e6)
    spec, shown, (root,) = drawn("roofline", {"attainable_flops_per_second": [low]})
    (mark,) = [path for path in root.iter(f"{SVG}path") if path.get("data-measured")]
    x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", mark.get("d")).groups())
    assert 0 < x < SVG_WIDTH and 0 < y < float(root.get("height")) - 40
    assert {"ridge: 295", "989 TFLOP/s"} <= set(texts(root))
    curves = spec.pictures[0]
    linear = replace(curves, y=replace(curves.y, scale="linear"))
    assert range_of(linear.y, [3e14, 989e12], False)[0] == 0
    made = ElementTree.fromstring(curves_svg(linear, shown, {}, spec).svg(""))
    assert "0" in texts(made)
    with pytest.raises(ValueError, match="was measured as 0 at arithmetic_intensity = 3: a logar"):
        drawings(spec, shown, {"attainable_flops_per_second": [(3, 0)]})


def test_ticks_are_few_and_inside():
    """Must catch: a tick beyond the axis; one tick on an axis of less than a power of ten."""
    assert Scale([10, 1e6], True, 0, 1).ticks() == [10.0**k for k in range(1, 7)]
    assert len(Scale([1, 1e24], True, 0, 1).ticks()) <= 9
    assert Scale([200e-3, 600e-3], True, 0, 1).ticks() == [0.2, 0.5]
    assert Scale([0, 1.2], False, 0, 1).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 1.2])


def test_a_point_beyond_the_axis_is_an_arrow():
    """Must catch: the point itself drawn outside, where nobody sees it."""
    assert drawn("roofline")[2][0].find(f"{SVG}circle") is not None
    spec = EXPLORERS["collective-cost"]
    shown = spec.compute(spec.move(spec.start(), "message_bytes", 2**45))
    (drawing,) = drawings(spec, shown)
    assert ElementTree.fromstring(drawing.svg("")).find(f"{SVG}circle") is None


def test_a_point_whose_lines_are_refused_has_its_axis():
    """Numbers beyond 2^53 are refused at every place of the axis, but not where the reader is.

    Must catch: an axis from 1 B to 10 B under a point of terabytes."""
    most = dict(layers=128, microbatch=128, sequence=131_072, fused_attention=0, dropout=0.1)
    spec, shown, (_, root, _) = drawn("recompute", **most)
    curves = spec.pictures[1]
    assert not list(spec.swept(curves, shown)) and shown[curves.point] > 1e13
    levels = {text.text: float(text.get("y")) for text in root.iter(f"{SVG}text") if text.text}
    assert "500 TB" in levels and "10 B" not in levels
    assert levels[fill_in(curves.words, shown)] > levels[curves.y.words] + 10
