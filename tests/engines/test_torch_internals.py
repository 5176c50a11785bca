"""Three files say what PyTorch calls private: for techniques, for the bench, for a GPU that is not
there. What they say is there."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from pages import ROOT
from sources import Source, is_private, source
from told import cells, told

import ranklab.torch_internals
from shardlab.common import torch_internals

FOLDERS = ("src", "bench", "tools", "examples", "tests")
DOORS = [ROOT / "src" / of / "torch_internals.py" for of in ("shardlab/common", "ranklab")]
DOORS += [ROOT / "src" / "ranklab" / "rehearse" / "stand_in.py"]
OURS = ("shardlab", "ranklab", "coursekit", "bookkit")
OTHER_PACKAGES = ("forkserver", "os", "sys", "sympy", "IPython", "plotly")
OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields", "_make")
OF_NOTEBOOKS = ("_repr_markdown_", "_repr_mimebundle_", "_repr_html_", "_render_traceback_")
pytestmark = pytest.mark.xdist_group("sources")  # one worker reads them
# What a file may use beside the door; told.md says why: a peer, or a look at PyTorch's own state.
BESIDE_THE_DOOR = defaultdict(set)
for file, names, _ in cells("test_torch_internals::beside the door"):
    BESIDE_THE_DOOR[file].update(names.split())


def private_names(file: Source) -> list[str]:
    """Private names that a file takes from PyTorch: by import, by attribute, by getattr; in text
    that is Python, too. What the file defines itself,
    and what modules of this repository define, is not PyTorch's."""
    found, ours = [], file.defines.union(OF_NAMED_TUPLES, OF_NOTEBOOKS)
    not_torch = {*OTHER_PACKAGES}
    for node in file.imports:
        if isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
            found += filter(is_private, parts)
            continue
        package = (node.module or "").split(".")[0]
        if package == "torch":
            found += filter(is_private, [*node.module.split("."), *(a.name for a in node.names)])
        elif package in OURS or node.level:
            not_torch |= {alias.asname or alias.name for alias in node.names}
    for node in file.reaches:
        of = node.value if isinstance(node, ast.Attribute) else node.args[0]
        name = node.attr if isinstance(node, ast.Attribute) else node.args[1]
        name = name.value if isinstance(name, ast.Constant) else name
        if isinstance(name, str) and is_private(name) and name not in ours:
            found += [name] * (ast.unparse(of).split(".")[0] not in not_torch)
    return found + [name for text in file.scripts for name in private_names(Source.of(text))]


def files() -> dict[str, Source]:
    """The files that use torch, by name; without the door."""
    return {
        path.relative_to(ROOT).as_posix(): source(path)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        # a printer of SymPy calls its own
        if path not in (*DOORS, Path(__file__)) and "torch" in path.read_text(encoding="utf-8")
    }


def test_three_files_name_what_is_private_in_pytorch():
    """Must catch: `storage._cdata` or `torch._C._current_graph_task_id()` in measure/ledger.py;
    `self._modules` in recompute/layers.py, while another file assigns a `_modules`;
    `torch._C` in bench/ or in a test; a peer above that no test uses any more."""
    found = {name: set(private_names(file)) for name, file in files().items()}
    assert {name: names for name, names in found.items() if names} == BESIDE_THE_DOOR


@pytest.mark.parametrize("line", [line for line, _ in told("test_torch_internals::seen", {})])
def test_each_way_to_a_private_name_is_seen(line):
    """Must catch: a check that looks at imports only, or at chains that begin with torch only; one
    that takes a store into a tensor's attribute for a definition, or that reads no text."""
    assert private_names(Source.of(line))


def test_every_entry_says_what_breaks_without_it():
    """Must catch: a new entry without a reason."""
    for node in (node for door in DOORS for node in ast.parse(door.read_text("utf-8")).body):
        if isinstance(node, ast.FunctionDef):
            assert "Without it" in " ".join(ast.get_docstring(node).split()), node.name


def test_backward_has_a_number_inside_and_none_outside():
    """Must catch: 0, which is the number of the first backward, taken for "outside"."""
    x, numbers, order = torch.ones(1, requires_grad=True), [], []

    def see(_):
        numbers.append(torch_internals.current_backward())
        torch_internals.at_end_of_backward(lambda: order.append("end"))

    for _ in range(2):
        y = x * 1
        y.register_hook(see)
        z = y * 1
        x.register_hook(lambda _: order.append("x"))
        z.backward()
    assert torch_internals.current_backward() is None
    assert None not in numbers and len(set(numbers)) == 2
    assert order[-1] == "end" and order[:2] == ["x", "end"]


def test_resizes_are_watched_until_the_end():
    """Must catch: a watch that stays when it was ended, or sees the size before."""
    storage, sizes = torch.zeros(4).untyped_storage(), []
    with ranklab.torch_internals.watching_resize(lambda one: sizes.append(one.nbytes())):
        storage.resize_(0)
    storage.resize_(16)
    assert sizes == [0]


def test_memory_has_one_key():
    """Must catch: a key of the tensor instead of its storage."""
    x = torch.zeros(4)
    keys = {torch_internals.storage_key(t.untyped_storage()) for t in (x, x[1:], x.view(2, 2))}
    assert len(keys) == 1
    assert torch_internals.storage_key(torch.zeros(4).untyped_storage()) not in keys
    with torch_internals.FakeTensorMode():
        a, b = torch.zeros(4), torch.zeros(4)
    assert len({torch_internals.storage_key(t.untyped_storage()) for t in (a, b)}) == 2


def test_hooks_of_saved_tensors_are_the_innermost():
    """Must catch: the outermost pair, or a pair that stays when its context is over."""
    outer, inner = torch.Tensor.detach, torch.Tensor.clone
    assert torch_internals.hooks_of_saved_tensors() is None
    with torch.autograd.graph.saved_tensors_hooks(outer, outer):
        with torch.autograd.graph.saved_tensors_hooks(inner, outer):
            assert torch_internals.hooks_of_saved_tensors() == (inner, outer)
        assert torch_internals.hooks_of_saved_tensors() == (outer, outer)
    assert torch_internals.hooks_of_saved_tensors() is None
