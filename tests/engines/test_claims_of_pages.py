"""Claims of pages: sentences that were wrong stay away, numbers that are typed follow from a source
or from a formula."""

import csv
import json
import re
from datetime import date

import pytest
import torch
from pages import ROOT
from solved import value
from told import cells, from_told

from coursekit.formulas import BOOK, GPUS, LINKS, PRESETS, evaluate, quantities

PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "chapters").glob("*.md")}

# page, what it said, why that was wrong
WRONG = cells("test_claims_of_pages::test_what_was_wrong_stays_away")


def words(page):
    return " ".join(PAGES[page].split())


@pytest.mark.parametrize("page, said, why", WRONG, ids=[said[:40] for _, said, _ in WRONG])
def test_what_was_wrong_stays_away(page, said, why):
    """Must catch: a corrected sentence that comes back, say with an old branch."""
    assert not re.search(said, words(page)), f"{page}: {said!r}: {why}"


@from_told("page, said, why", cells)
def test_what_was_missing_stays(page, said, why):
    """Must catch: what a reader had missed, taken off its page again."""
    assert re.search(said, words(page)), f"{page}: {said!r}: {why}"


# --- numbers in the text that follow from a table -------------------------------------------------


def test_how_much_faster_nvlink_is():
    """Must catch: a ratio on the page that the table of links does not give."""
    beside = {"NVLink 3 (A100)": "PCIe 4 x16", "NVLink 4 (H100)": "PCIe 5 x16"}
    beside["NVLink 5 (B200)"] = "PCIe 5 x16"  # no accelerator is attached by PCIe 6
    rate = {name: link.quantities["link_bytes_per_second"] for name, link in LINKS.items()}
    ratios = [rate[nvlink] / rate[pcie] for nvlink, pcie in beside.items()]
    said = re.search(r"is (\d+) to (\d+) times as fast as the PCIe beside it", words("hardware"))
    assert [int(number) for number in said.groups()] == [round(min(ratios)), round(max(ratios))]


def test_memory_is_what_a_program_may_use():
    """Must catch: GB of 10^9 bytes where a maker counts GiB, a name on the page that is not the
    row's, a growth that the rows do not give, a bandwidth rounded to two digits and printed with
    three."""
    memory = {name: gpu.quantities["gpu_memory_bytes"] for name, gpu in GPUS.items()}
    recorded = json.loads((ROOT / "measured/nvidia-h100-80gb-hbm3-2026-11-26.json").read_text())
    assert memory["H100 SXM 80GB"] == recorded["hardware"]["memory_bytes"]
    rows = csv.DictReader((ROOT / "src/coursekit/data/hardware.csv").read_text().splitlines())
    for row in rows:  # GB are GiB but where GDDR6 corrects errors, less what the driver keeps
        unit = 10**9 if row["memory_kind"] == "GDDR6" else 2**30
        assert 0.979 < memory[row["name"]] / (int(row["memory_GB"]) * unit) < 1.001, row["name"]
        assert "visible bytes" in row["source"], row["name"]
        said = re.findall(
            rf'^\|[^|]*\| (\d+) GB \| {{bytes}}`gpu_memory_bytes\(gpu="{row["name"]}"',
            PAGES["hardware"],
            re.MULTILINE,
        )
        assert said in ([], [row["memory_GB"]])
    assert GPUS["L40S"].quantities["memory_bytes_per_second"] == 864e9
    assert GPUS["B200 SXM"].quantities["memory_bytes_per_second"] == 7.7e12
    said = re.search(r"the memory of a GPU grew (\d+)-fold", words("why-one-gpu"))
    assert int(said[1]) == round(memory["B300 SXM"] / memory["V100 SXM2 32GB"])


def test_the_optima_of_the_scaling_law():
    """Both fits at Chinchilla's budget. Must catch: an optimum of rounded or exchanged exponents; a
    split that another split of the same budget beats."""
    rows = re.findall(
        r"^\| [^|]*cite[^|]*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+)B \| ([\d.]+)T"
        r" \| (\d+) \|$",
        PAGES["why-one-gpu"],
        re.MULTILINE,
    )
    assert len(rows) == 2
    budget = 70e9 * 1.4e12
    for row in rows:
        a, b, alpha, beta, billions, trillions, each = map(float, row)
        scale = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
        size = scale * budget ** (beta / (alpha + beta))
        loss = lambda psi, a=a, b=b, alpha=alpha, beta=beta: (
            a / psi**alpha + b / (budget / psi) ** beta
        )
        assert loss(size) < min(loss(0.9 * size), loss(1.1 * size))
        assert round(size / 1e9) == billions and round(budget / size / size) == each
        assert f"{budget / size / 1e12:.1f}" == f"{trillions:.1f}"


def test_the_update_of_adam():
    """The formula of chapter 3 beside two steps of PyTorch's. Must catch: a bias correction left
    out, epsilon under the root."""
    update = r"\frac{m_n / (1-\beta_1^n)}{\sqrt{v_n / (1-\beta_2^n)} + \epsilon}"
    assert update in PAGES["where-the-memory-goes"]
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    theta, m, v = weight.detach().clone(), 0, 0
    for n, gradient in ((1, torch.tensor([0.5, -1.0])), (2, torch.tensor([-2.0, 0.1]))):
        weight.grad = gradient.double()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * weight.grad, 0.99 * v + 0.01 * weight.grad**2
        theta = theta - 0.1 * (m / (1 - 0.9**n)) / ((v / (1 - 0.99**n)).sqrt() + 1e-3)
    torch.testing.assert_close(weight.detach(), theta)


def test_the_ridges_rise_fall_and_rise():
    """The sentence above the table of ridges. Must catch: a row that changes and a sentence that
    does not."""
    ridge = {
        name: gpu.quantities["flops_per_second"] / gpu.quantities["memory_bytes_per_second"]
        for name, gpu in GPUS.items()
    }
    assert ridge["H100 SXM 80GB"] / ridge["V100 SXM2 32GB"] == pytest.approx(2, rel=0.1)
    assert ridge["H200 SXM"] < 0.75 * ridge["H100 SXM 80GB"]
    assert ridge["B200 SXM"] > 1.3 * ridge["H200 SXM"]


def test_from_how_many_ranks_a_model_fits():
    """Must catch: the next stop of a slider taken for the least number of ranks."""
    given = quantities(model="Llama 2 70B", recipe="bf16 + fp32 master", zero_stage=3, rank=0)
    name = "zero_states_bytes"
    held = lambda ranks: value(name, data_parallel=ranks, **given)
    said = re.search(r"Stage 3 fits from (\d+) ranks up, with", words("zero"))
    memory = GPUS["H100 SXM 80GB"].quantities["gpu_memory_bytes"]
    assert int(said[1]) == next(ranks for ranks in range(1, 100) if held(ranks) <= memory)


def test_one_edition_of_a_source():
    """Must catch: a table cited by one commit on the formula sheet and by another in the
    bibliography."""
    cited = re.findall(r"ml-engineering/blob/(\w{7})", (ROOT / "references.bib").read_text())
    sources = [(ROOT / "src/coursekit/data/hardware.csv").read_text()]
    sources += [link.source for link in LINKS.values()]
    there = re.findall(r"ml-engineering@(\w+)", "\n".join(sources))
    assert len(there) > 10 and set(there) == set(cited)


def kept_by(loss, logits, targets):
    """The dtypes of what the loss keeps of the logits' shape for backward."""
    kept = set()

    def keep(tensor):
        if tensor.shape == logits.shape:
            kept.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(logits, targets)
    return kept


def test_a_log_softmax_is_as_wide_as_its_logits():
    """A model that is all bf16 has a log-softmax in bf16, as the page says. Must catch: PyTorch
    widening it, and the page not."""
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.zeros(4, 9, dtype=dtype, requires_grad=True)
        assert kept_by(torch.nn.functional.cross_entropy, logits, torch.zeros(4).long()) == {dtype}


# --- numbers that are typed into roles ------------------------------------------------------------

CITED = {  # llm-foundry's table: parameters, and tokens a second of all GPUs
    64_862_437_376: "MPT-70b",
    6_918_905_856: "MPT-7b at 65,536 tokens",
    512 * 1007: "512 GPUs, 1,007 tokens a second each",
    8 * 1956: "8 GPUs, 1,956 tokens a second each",
}


def count(name, model):
    return value(name, **quantities(model=model))


def test_typed_numbers_are_round_or_have_a_source():
    """A number in a role that is neither round nor cited follows from a formula, and is out of date
    as soon as that changes. Must catch: 871_079_692, which was the bytes that a ring sends."""
    gpt3 = quantities(model="GPT-3 175B")
    known = {*CITED, gpt3["vocabulary"] * gpt3["hidden"]}
    known |= {count("parameters", name) for name in ("GPT-2 124M", "Llama 3 8B")}
    known |= {count("layer_parameters", "GPT-3 175B")}
    for page, text in PAGES.items():
        roles = re.findall(r"\{(?:number|bytes)\}`([^`]+)`", text)
        for said in roles + re.findall(r"```\{given\} \w+\n(.+?)```", text, re.DOTALL):
            for typed in re.findall(r"(?<![\w.])\d[\d_]*(?![\w.])", said):
                number, digits = int(typed), len(typed.replace("_", "").rstrip("0"))
                power_of_two = number & -number
                assert digits < 6 or number // power_of_two < 1000 or number in known, (
                    f"{page}: {typed} in {' '.join(said.split())}: compute it, or say in this test"
                    " where it was read"
                )


def test_every_test_that_a_page_names_exists():
    """Must catch: a test renamed, and the page that names it as its proof left as it was."""
    files = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"`(?:tests/[\w/]+\.py::)?(test_\w+)`", "".join(PAGES.values())))
    assert named and named <= {*re.findall(r"^def (test_\w+)\(", "".join(files), re.M)}


# --- sources, and what a page must name -----------------------------------------------------------


def test_names_of_authors():
    """Must catch: "Patarasu", which two formula sheets printed."""
    sources = [formula.source for formula in BOOK.formulas.values()] + list(PAGES.values())
    sources.append((ROOT / "references.bib").read_text(encoding="utf-8"))
    assert sum("Patarasuk" in source for source in sources) > 5
    wrong = [source for source in sources if re.search(r"Patarasu(?!k)", source)]
    assert not wrong, wrong[0][:100]


def test_presets_are_dated():
    """Must catch: a model, a recipe, a GPU, a link or a protocol without a source or a day."""
    for kind, presets in PRESETS.items():
        for preset in presets.values():
            assert preset.source, (kind, preset.name)
            assert date.fromisoformat(preset.read_on) <= date.today(), (kind, preset.name)
    rows = csv.DictReader((ROOT / "src/coursekit/data/hardware.csv").read_text().splitlines())
    assert {row["name"]: row["read_on"] for row in rows} == {
        gpu.name: gpu.read_on for gpu in GPUS.values()
    }


def test_layers_in_a_checkpoint_that_need_the_fewest_bytes():
    """Must catch: an n in the table that is called the best and is not."""
    said = r"layers=(\d+), recompute_every=(\d+)\) as exact` \(\$n = (\d+)\$\)"
    rows = [tuple(map(int, row)) for row in re.findall(said, PAGES["activation-checkpointing"])]
    assert len(rows) == 4
    for layers, best, printed in rows:
        given = dict(layers=layers, residual_bytes=1, layer_activation_bytes=16)
        alive = {
            n: evaluate(["grouped_activation_bytes"], recompute_every=n, **given)
            for n in range(1, layers + 1)
        }
        assert best == printed == min(alive, key=lambda n: alive[n]["grouped_activation_bytes"])
