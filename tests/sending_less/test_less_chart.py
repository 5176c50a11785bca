"""The page, its stepper, its explorer and the recorded chart beside what they say."""

import json
import re
from statistics import mean

import pytest
import torch
from pages import ROOT, chapter

from coursekit.topics.sending_less import lab
from coursekit.topics.sending_less.figures import (
    CHART_LINKS,
    recorded_chart,
    recorded_large,
    shortest_seconds,
)
from coursekit.topics.sending_less.pictures import PICTURES, draw_large_batches
from coursekit.topics.sending_less.steps import (
    FEEDBACK_STEPS,
    FRAMES,
    SAME_GRADIENT,
    feedback_steps,
)


@pytest.mark.parametrize("feedback", FRAMES.choices)
def test_the_stepper_loses_nothing_with_feedback(feedback):
    """The sum of what was sent is the sum of gradients less the last error. Must catch: an error
    that is forgotten, or added twice; a smaller number that leaves; a step without a picture."""
    steps = feedback_steps(feedback)
    for step in steps:
        assert sum(number != 0 for number in step.sent) <= 1
        assert max(map(abs, step.total)) == max(map(abs, step.sent))
        wanted = [step.number * g for g in SAME_GRADIENT]
        rest = [a - b for a, b in zip(wanted, step.summed)]
        assert (rest == [*step.kept]) == (feedback or step.number < 2)
    assert f"misses {sum(map(abs, rest))} of" in steps[-1].detail
    assert len(FRAMES.data(feedback)["frames"]) == len(steps) == FEEDBACK_STEPS + 1


def test_the_recorded_chart():
    """Must catch: a way that was not recorded, or with fewer seeds; bytes that are not those of the
    log; a column whose fastest way has not made all steps; a picture without a way."""
    chart = recorded_chart()
    assert len(chart) == 10 and {way.number for way in chart.values()} == {*range(1, 11)}
    assert all(len(way.curves) == 3 and way.rate > 0 for way in chart.values())
    for link in CHART_LINKS:
        seconds = shortest_seconds(chart, link)
        made = {way.name: seconds / way.step_seconds(link) for way in chart.values()}
        assert max(made.values()) == pytest.approx(max(chart["fp32"].curves[0]))
    slow = [mean(way.after(seconds, CHART_LINKS[-1])) for way in chart.values()]
    assert slow[0] == max(slow)  # fp32, in 1 Gbit/s
    for draw in set(PICTURES.values()) - {draw_large_batches}:
        drawn = draw()
        assert all(name in drawn for name in chart)


def test_the_page_says_what_the_charts_show():
    """Must catch: a new recording beside the old words."""
    page = chapter("sending-less")
    chart, large = recorded_chart(), recorded_large()
    ends = {name: mean(way.ends) for name, way in chart.items()}
    spread = max(chart["fp32"].ends) - min(chart["fp32"].ends)
    of = lambda batch, name: f"{mean(large[batch][name]):.2f}"
    for words in (
        f"three seeds of fp32 alone lie {spread:.2f} apart",
        f"sends a fiftieth and loses {ends['DiLoCo'] - ends['fp32']:.2f}",
        f"helps at 32 ({of(32, 'SGD, linear')} against {of(32, 'SGD, one rate')})",
        f"LAMB comes to {of(128, 'LAMB, root')}, AdamW to {of(128, 'AdamW, root')}.",
    ):
        assert words in page, words
    assert chart["fp32"].step_bytes / chart["DiLoCo"].step_bytes == pytest.approx(50, rel=0.01)
    assert sorted(ends, key=ends.get)[-2:] == ["signs", "top 1 %"]
    assert min(mean(large[128][name]) for name in large[128] if "SGD" in name) > 3.15


# --- the page and its lab -------------------------------------------------------------------------

PAGE = chapter("sending-less")


def printed():
    cells = json.loads((ROOT / "labs" / "16-sending-less.ipynb").read_text("utf-8"))["cells"]
    outputs = [out for cell in cells for out in cell.get("outputs", ())]
    return "".join("".join(out.get("text", ())) for out in outputs)


def test_the_page_has_the_labs_losses():
    """Must catch: a lab that is stored anew beside the losses of before."""
    plain, fed, unfed = re.search(
        r"loss in fp32 ([\d.]+), signs ([\d.]+), signs without ([\d.]+)", printed()
    ).groups()
    assert f"| rate 0.3 | {plain} | **{fed}** | {unfed} |" in PAGE
    heavy, unfed = re.search(
        r"loss in fp32 ([\d.]+), signs without feedback ([\d.]+)", printed()
    ).groups()
    row = re.search(r"\| rate 0.1, momentum 0.9 \| ([\d.]+) \| \*\*([\d.]+)\*\* \| ([\d.]+)", PAGE)
    assert (row[1], row[3]) == (heavy, unfed) and float(row[2]) > float(unfed)


def test_gradients_are_of_one_model():
    """Must catch: a model that moves between batches; gradients that add up; one batch twice."""
    first, second = lab.flat_gradients(2)
    assert torch.equal(first, lab.flat_gradients(1)[0]) and not torch.equal(first, second)
    assert len(first) == 106_624


def test_figures_of_the_lab():
    """Must catch: the way that sends most on top; a link's bars under another link."""
    (points,) = lab.chart({"SGD": (2.8, 640_000.0), "signs": (2.6, 20_000.0)}).data
    assert points.x == (2.6, 2.8)
    bars = lab.link_figure({"near": {"fp32": 9, "signs": 10}, "far": {"fp32": 90, "signs": 20}})
    assert [list(bar.y) for bar in bars.data] == [[9, 90], [10, 20]]
