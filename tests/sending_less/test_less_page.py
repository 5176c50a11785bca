"""The page and the lab of chapter 16 beside what runs: losses of the stored lab, gradients and
figures of its module."""

import json
import re
from pathlib import Path

import torch

from coursekit.topics.sending_less import lab

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "chapters" / "sending-less.md").read_text("utf-8")


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
