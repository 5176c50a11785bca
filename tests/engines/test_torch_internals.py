"""One file says what PyTorch calls private; what it says is there."""

import ast
from functools import cache
from pathlib import Path

import pytest
import torch
from sources import Source, is_private, source
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import shardlab
from shardlab import torch_internals

PACKAGE = Path(shardlab.__file__).parent
DOOR = PACKAGE / "torch_internals.py"
OTHER_PACKAGES = ("forkserver", "os", "sys", "sympy", "IPython", "plotly")
OF_NAMED_TUPLES = ("_replace", "_asdict", "_fields", "_make")


def private_names(file: Source, ours: set[str]) -> list[str]:
    """Private names that a file takes from PyTorch: by import, by attribute, by getattr."""
    found = []
    for node in file.imports:
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if any(map(is_private, a.name.split(".")))]
        elif (node.module or "").split(".")[0] == "torch":
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node)] * any(map(is_private, parts))
    for node in file.reaches:
        if isinstance(node, ast.Attribute):
            if node.attr not in ours:
                root = ast.unparse(node).split(".")[0]
                found += [ast.unparse(node)] * (root not in OTHER_PACKAGES)
            continue
        name = node.args[1]
        if isinstance(name, ast.Constant) and is_private(name.value) and name.value not in ours:
            found.append(ast.unparse(node))
    return found


@cache
def files() -> tuple[dict[str, Source], set[str]]:
    """The files that use torch, by name, and everything that the package itself defines; both
    without the door."""
    paths = set(PACKAGE.rglob("*.py")) - {DOOR}
    ours = set(OF_NAMED_TUPLES).union(*(source(path).defines for path in paths))
    return {
        path.relative_to(PACKAGE).as_posix(): source(path)
        for path in sorted(paths)
        # a printer of SymPy calls its own
        if "torch" in path.read_text(encoding="utf-8")
    }, ours


def test_one_file_names_what_is_private_in_pytorch():
    """Must catch: `storage._cdata` or `torch._C._current_graph_task_id()` in measure/ledger.py."""
    uses_torch, ours = files()
    found = {name: private_names(file, ours) for name, file in uses_torch.items()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._guards import active_fake_mode",
        "from torch.utils import _pytree",
        "torch._C._current_graph_task_id()",
        "dist.distributed_c10d._world.pg_map",
        "tensor.untyped_storage()._cdata",
        "getattr(tensor, '_local_tensor')",
    ],
)
def test_each_way_to_a_private_name_is_seen(line):
    """Must catch: a check that looks at imports only, or at chains that begin with torch only."""
    _, ours = files()
    assert private_names(Source.of(line), ours)


def test_every_entry_says_what_breaks_without_it():
    """Must catch: a new entry without a reason."""
    for node in ast.parse(DOOR.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            assert node.name in torch_internals.__all__
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
    end = torch_internals.watch_resize(lambda storage: sizes.append(storage.nbytes()))
    storage.resize_(0)
    end()
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


def test_hooks_are_noted_before_torch_tells_them(monkeypatch):
    """Before torch 2.8. Must catch: hooks that stay in the stack, or are noted and not set."""
    if torch_internals.TELLS_HOOKS:
        for name in ("__enter__", "__exit__"):  # put back after the test
            monkeypatch.setattr(saved_tensors_hooks, name, getattr(saved_tensors_hooks, name))
        monkeypatch.setattr(torch_internals, "TELLS_HOOKS", False)
        torch_internals.note_hooks()
    seen, x = [], torch.ones(2, requires_grad=True)
    detach, kept = torch.Tensor.detach, torch.Tensor.clone

    def function(x):
        seen.append(torch_internals.hooks_of_saved_tensors())
        return x.exp()

    assert torch_internals.hooks_of_saved_tensors() is None
    with saved_tensors_hooks(detach, kept):
        assert torch_internals.hooks_of_saved_tensors() == (detach, kept)
        checkpoint(function, x, use_reentrant=False).sum().backward()
        assert torch_internals.hooks_of_saved_tensors() == (detach, kept)
    assert torch_internals.hooks_of_saved_tensors() is None and len(seen) == 2
    assert all(pair not in (None, (detach, kept)) for pair in seen)
