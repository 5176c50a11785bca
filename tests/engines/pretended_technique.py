"""The files of a technique that does not exist, by their paths: what test_pretended_technique.py
adds to a copy of the repository."""

import nbformat

SHELF = '''"""Copies of a model that nobody needs."""

from torch import Tensor, nn


def pretend(net: nn.Module, copies: int) -> list[Tensor]:
    """So many copies of each parameter."""
    return [part.detach().clone() for part in net.parameters() for _ in range(copies)]
'''

FORMULAS = '''"""Pretending: what a technique that does not exist would keep."""

from coursekit.formulas.registry import BOOK

BOOK.quantity("pretended_copies", r"n_\\text{pretend}", "count", "copies that are pretended")


class Pretended(
    BOOK.section(source="nobody", measured_by="tests/pretended/test_pretended.py::test_copies")
):
    def pretended_bytes(q):
        r"""M_\\text{pretend} | bytes | bytes of all pretended copies"""
        return q.pretended_copies * q.parameter_bytes
'''

EXPLORER = '''"""The explorer of chapter "pretended"."""

from types import MappingProxyType

from coursekit.show.pictures import MemoryBar, Part
from coursekit.show.spec import Control, Explorer, Menu, Say, ExplorerTable

PRETENDED = Explorer(
    name="pretended-copies",
    title="How much is pretended?",
    menus=(Menu("model", "Model", without=("dense_layers",)), Menu("recipe", "Recipe")),
    controls=(
        Control("pretended_copies", "copies", (1, 2, 3, 4)),
        Control("layers", "layers", range(1, 129)),
    ),
    links=(),
    begin=MappingProxyType(dict(model="GPT-2 124M", recipe="fp32 Adam", pretended_copies=3)),
    pictures=(
        MemoryBar(
            "Pretended",
            (Part("pretended_bytes", "copies", "parameters"),),
            total="pretended_bytes",
        ),
    ),
    sentence=(Say("Pretended are {pretended_bytes}."),),
    detail=(),
    table=ExplorerTable("By model", "model", (("copies, GB", "pretended_bytes", "GB"),)),
    outputs=("pretended_bytes",),
)
'''

STEPS = '''"""What a stepper would show of pretending: one copy more in each step."""

from typing import NamedTuple


class Step(NamedTuple):
    """How many copies there are after a step."""

    copies: int


def sentence(step: Step) -> str:
    return f"There are {step.copies} copies."


PRETENDED_STEPS = tuple(Step(copies) for copies in (1, 2, 3))
'''

EXERCISES = '''"""What a reader of chapter "pretended" writes."""

from coursekit.exercises.checker import Exercise, Misconception

pretended_total_bytes = Exercise(
    "pretended_total_bytes",
    reference=lambda copies, parameter_bytes: copies * parameter_bytes,
    cases=(
        dict(copies=3, parameter_bytes=10),
        dict(copies=5, parameter_bytes=4),
    ),
    misconceptions=(
        Misconception(
            lambda copies, parameter_bytes: parameter_bytes, "you count one copy alone."
        ),
        Misconception(
            lambda copies, parameter_bytes: (copies + 1) * parameter_bytes,
            "you count the model among its copies.",
        ),
    ),
    right="each copy has all parameters.",
    unit="bytes",
)
'''

PICTURES = '''"""The still picture of chapter "pretended"."""

from coursekit.show.drawing import Drawing


def draw_pretended_copies():
    drawing = Drawing("pretended-boxes", "Three copies of one model")
    for number in range(3):
        drawing.box(10 + 90 * number, 10, 80, 30, "parameters")
    words = "Three boxes of one size side by side. Each is a copy of all parameters of the model."
    return drawing.svg(50, words)


PICTURES = {"pretended-boxes": draw_pretended_copies}
'''

LAB = '''"""What the lab weighs."""

from coursekit.lab import small_gpt
from coursekit.topics.pretended.weighing import nbytes_of
from shardlab.pretending import pretend

SIZES = dict(layers=1, hidden=8, heads=2, vocabulary=5)


def pretended_nbytes(copies: int) -> int:
    return nbytes_of(pretend(small_gpt(**SIZES), copies))
'''

WEIGHING = '''"""A helper of the lab, with torch and a name that no other topic has."""

from torch import Tensor


def nbytes_of(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
'''

RUNS = '''"""What `make gpu` records of pretending, and what `make bench` races."""

from coursekit.formulas import evaluate
from coursekit.lab import small_gpt
from coursekit.recordings.races import Bench, Result, Run
from coursekit.recordings.recordings import Row
from coursekit.topics.pretended.lab import SIZES, pretended_nbytes
from coursekit.topics.pretended.weighing import nbytes_of


def pretending(device, copies=3):
    """One row."""
    name, parameters = "pretended_bytes", nbytes_of(list(small_gpt(**SIZES).parameters()))
    want = evaluate([name], parameter_bytes=parameters, pretended_copies=copies)[name]
    yield Row("pretended.copies", pretended_nbytes(copies), "bytes", {}, name, want)


def race(copies=3):
    """One ratio."""
    case = dict(what="pretended", peer="nobody", identical_low=1.0, identical_high=1.0)
    return [Result("pretended", "copies", copies, "x", row="pretended_race.step", case=case)]


RUNS = (Run(500, pretending, dict(copies=2)),)
BENCHES = (Bench("pretended", race, dict(copies=2)),)
'''

TEST = '''"""Copies that are pretended."""

from coursekit.formulas import evaluate
from coursekit.topics.pretended.lab import pretended_nbytes


def test_copies():
    """Must catch: a copy too many."""
    one = pretended_nbytes(1)
    asked = evaluate(["pretended_bytes"], parameter_bytes=one, pretended_copies=3)
    assert asked == {"pretended_bytes": pretended_nbytes(3)}
'''

PAGE = """---
question: What is the use of copies?
lab: labs/90-pretended
---
# Pretending

Three copies of GPT-2 {cite}`nobody2026` take
{bytes}`pretended_bytes(model="GPT-2 124M", recipe="fp32 Adam", pretended_copies=3)`.

```{picture} pretended-boxes
**Figure 1.** Three copies.
```

```{explorer} pretended-copies
```

```{equation} pretended_bytes
```
"""

SOURCE = """
@misc{nobody2026,
  author = {Nobody, Ada},
  title = {Copies},
  howpublished = {never},
  year = {2026},
}
"""

TOPIC = "src/coursekit/topics/pretended"
FILES = {
    "src/shardlab/pretending.py": SHELF,
    f"{TOPIC}/__init__.py": "",
    f"{TOPIC}/formulas.py": FORMULAS,
    f"{TOPIC}/explorer.py": EXPLORER,
    f"{TOPIC}/steps.py": STEPS,
    f"{TOPIC}/exercises.py": EXERCISES,
    f"{TOPIC}/pictures.py": PICTURES,
    f"{TOPIC}/lab.py": LAB,
    f"{TOPIC}/weighing.py": WEIGHING,
    f"{TOPIC}/runs.py": RUNS,
    "tests/pretended/test_pretended.py": TEST,
    "tests/pretended/recorded.txt": "pretended.copies\n",
    "chapters/pretended.md": PAGE,
}
LAB_FILE = "labs/90-pretended.ipynb"


def pretended_lab():
    """The notebook: a title and one cell that was run."""
    lab = nbformat.v4.new_notebook()
    lab.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    lab.cells = [
        nbformat.v4.new_markdown_cell("# A pretended lab"),
        nbformat.v4.new_code_cell("1 + 1", execution_count=1, outputs=[made]),
    ]
    return lab
