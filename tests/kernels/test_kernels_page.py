"""The page and the lab of chapter 13 beside what runs: the stepper, the graph in the
picture, seconds of a chain, reasons of breaks, the C function."""

import json
import math
import re
import resource
import sys

import pytest
import torch
from pages import ROOT, chapter

from coursekit.formulas import evaluate
from coursekit.lab import batches, small_gpt
from coursekit.recordings.recordings import read_all
from coursekit.topics.kernels import lab, own_c
from coursekit.topics.kernels.exercises import one_row_of_attention
from coursekit.topics.kernels.pictures import CODE, NODES
from coursekit.topics.kernels.steps import FRAMES, ROW_SCORES, ROW_VALUES, TILES, tile_steps
from shardlab.gpt import next_token_loss
from shardlab.kernels.moved_bytes import moved_bytes

PAGE = chapter("kernels")


@pytest.mark.parametrize("tile", TILES)
def test_the_stepper_ends_with_softmax_times_values(tile):
    """Must catch: a sum that does not shrink, a key that no tile has, a step without a picture."""
    steps = tile_steps(tile)
    last, scores = steps[-1], torch.tensor(ROW_SCORES, dtype=torch.float64)
    wanted = scores.softmax(0) @ torch.tensor(ROW_VALUES, dtype=torch.float64)
    assert last.mixed / last.total == pytest.approx(wanted.item(), rel=1e-12)
    assert last.largest + math.log(last.total) == pytest.approx(scores.logsumexp(0).item())
    assert [key for step in steps for key in step.keys] == list(range(len(ROW_SCORES)))
    tiles = [(ROW_SCORES[at : at + tile], ROW_VALUES[at : at + tile]) for at in range(0, 8, tile)]
    assert one_row_of_attention.reference(tiles) == pytest.approx(wanted.item())
    data = FRAMES.data(tile)
    assert len(data["frames"]) == len(data["say"]) == len(steps) == 8 // tile + 2


def test_the_picture_has_autograds_graph():
    """Must catch: a node left out, arrows in another order, a tensor that is kept and not drawn."""
    names = {"x": torch.randn(4, 3)}
    names |= {n: torch.randn(*s, requires_grad=True) for n, s in (("w", (3, 2)), ("b", (2,)))}
    for line in CODE:
        exec(line, names)
    nodes = [names["loss"].grad_fn]
    for node in nodes:
        nodes += {n for n, _ in node.next_functions if n is not None}.difference(nodes)
    drawn = sorted(node.name for node in NODES)
    assert sorted(node.name().rpartition("::")[2] for node in nodes) == drawn
    kept = {node.name(): node for node in nodes}
    saved = lambda name, what: getattr(kept[name], f"_saved_{what}")
    y = names["y"].detach()
    assert saved("ReluBackward0", "result").data_ptr() == y.data_ptr()
    assert saved("MulBackward0", "self").data_ptr() == y.data_ptr()
    assert saved("MmBackward0", "self").data_ptr() == names["x"].data_ptr()
    assert saved("MmBackward0", "mat2") is None


def test_seconds_of_a_chain():
    """Four launches of 5 µs against 36 bytes an element at 1 TB/s. Must catch: launches
    added to bytes; a fused chain that takes more than one launch."""
    given = dict(operation_columns=1000, operation_element_bytes=4, operation_depth=4)
    given |= dict(chain_operands=1, launch_seconds=5e-6, memory_bytes_per_second=1e12)
    names = ("chain_tensors", "chain_seconds", "fused_chain_seconds", "fused_times_faster")
    small = evaluate(names, **given, operation_rows=1)
    assert small == pytest.approx(dict(zip(names, (9, 20e-6, 5e-6, 4))))
    large = evaluate(names, **given, operation_rows=10_000)
    assert large == pytest.approx(dict(zip(names, (9, 360e-6, 80e-6, 4.5))))


def test_what_a_batch_moves():
    """Must catch: a step whose calls grow with the batch; another GPT in the lab."""
    net, found = small_gpt(seed=0), []
    for sequences in (1, 8, 32):
        tokens, targets = next(batches(sequences))
        step = lambda t=tokens, u=targets: next_token_loss(net(t), u).backward()
        found.append(moved_bytes(step))
        net.zero_grad()
    one, eight, many = (moved.total for moved in found)
    each = (many - one) / 31
    assert eight == one + 7 * each
    (calls,) = {len(moved.calls) for moved in found}
    assert f"{calls} calls forward and backward, for one sequence as for 32" in PAGE
    assert f"moves {(one - each) / 1e6:.1f} MB and {each / 1e6:.1f} MB a sequence" in PAGE


def faults(work) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
def test_new_memory_costs_page_faults():
    """Other threads fault as well, and a kernel with large pages faults seldom.

    Must catch: a claim about memory that is kept; a tensor that is made on top of an old one."""
    anew = lambda: torch.ones(2**24)
    x = anew()
    if faults(anew) < 100:
        pytest.skip("large pages")
    assert faults(anew) >= 16_384 and "64 MiB made anew are 16,385 faults" in PAGE
    assert faults(lambda: x.fill_(2)) < 1000


def test_breaks_have_their_reasons():
    """Must catch: the page's words for a break, when PyTorch has others; graphs miscounted."""

    def step(x):
        y = torch.relu(x) * 2
        if y.sum().item() > 0:
            y = y + 1
        print("half")
        return y * 3

    torch.compiler.reset()
    found = torch._dynamo.explain(step)(torch.ones(4))
    for reason, words in zip(
        found.break_reasons, ("Tensor.item()", "builtin operator"), strict=True
    ):
        assert words in reason.reason and reason.reason.splitlines()[0][:30] in PAGE
    assert found.graph_count == 3


a_compiler = pytest.mark.skipif(lab.cpp_compiler() is None, reason="no C++ compiler")


@pytest.mark.nightly  # a third of a minute, for code of PyTorch
@a_compiler
def test_the_loop_is_one(one_thread):
    """Must catch: a chain that is not fused, a loop that is not found, a line that a lab's cell
    would have to scroll."""
    chain = lambda x, b: torch.relu(x + b) * 0.5 + x
    given = torch.randn(64, 64), torch.randn(64)
    loop = lab.loop_of(chain, *given)
    assert loop.count("loadu") == 2 and loop.count(".store(") == 1
    assert max(map(len, loop.splitlines())) <= 66


@pytest.mark.slow
@a_compiler
def test_a_c_function_is_called():
    """Must catch: an address of another tensor, a length of another type."""
    double = "void twice(float* x, long n) { for (long i = 0; i < n; i++) x[i] *= 2; }"
    x = torch.arange(4.0)
    lab.c_function(f'extern "C" {double}', "twice")(lab.address(x), 4)
    assert x.tolist() == [0, 2, 4, 6]


def test_a_build_that_was_stopped_is_done_again(monkeypatch):
    """Must catch: the folder of the stopped build, whose library PyTorch then takes for built, or
    whose lock it waits for; a second build of an operator, which cannot register itself again."""
    folders, library = [], torch.library.Library("lab13_cpp", "FRAGMENT")

    def load(*_, build_directory=None, **__):
        folders.append(build_directory)
        if len(folders) == 1:
            raise KeyboardInterrupt
        library.define("mean_squares(Tensor x) -> Tensor")
        library.impl("mean_squares", lambda x: 2 * x, "CPU")

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load)
    monkeypatch.setattr("torch.utils.cpp_extension.is_ninja_available", lambda: True)
    monkeypatch.setattr(own_c, "cpp_compiler", lambda: "g++")
    with pytest.raises(KeyboardInterrupt):
        own_c.in_cpp(torch.ones(2))
    assert [own_c.in_cpp(torch.ones(())).item() for _ in range(2)] == [2, 2]
    assert len(folders) == len({*folders, None}) - 1 == 2


def test_the_page_has_the_recorded_costs_of_a_call():
    """Must catch: another recording's ratios, or the CPU's beside a GPU's."""
    measured = read_all(ROOT / "measured")
    rows = [row for one in measured for row in one.find("kernels.call_ratio", device="cpu")]
    box = PAGE.split("```{measured} a call on four elements, CPU")[1].split("Two cores")[0]
    assert re.findall(r"\d\.\d", box) == [f"{row.value:.1f}" for row in rows[:4]]


def test_the_ratio_is_of_cpu_time():
    """Must catch: eager and compiled exchanged; a figure that lacks a size."""
    x = torch.randn(200, 200)
    assert lab.times_faster(lambda x: (x @ x) @ x @ x @ x, lambda x: x, x, turns=3) > 1
    bars = lab.figure_of_ratios({"4 KB": 0.5, "4 MB": 3.0}, 4.5).data[0]
    assert list(bars.x) == ["4 KB", "4 MB"] and list(bars.y) == [0.5, 3.0]


def test_the_page_has_the_ratios_of_the_stored_lab():
    """Must catch: a lab that is stored anew beside a table of the run before."""
    lab_stored = json.loads((ROOT / "labs" / "13-kernels.ipynb").read_text("utf-8"))
    outputs = [out for cell in lab_stored["cells"] for out in cell.get("outputs", ())]
    plots = [out.get("data", {}).get("application/vnd.plotly.v1+json") for out in outputs]
    stored = next(plot["data"][0]["y"] for plot in plots if plot)
    row = re.search(r"^\| CPU time, eager / compiled; bytes: 4.5 \|(.*)\|$", PAGE, re.MULTILINE)[1]
    assert [float(text.strip("* ")) for text in row.split("|")] == [
        float(f"{ratio:.2g}") for ratio in stored
    ]
