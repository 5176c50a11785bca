"""The kit of the labs: ranks on what is there, what their cells share, names that a cell misses."""

import pytest
import torch
import torch.distributed as dist
from notebook_kernel import notebook

from coursekit.lab import batches, far, ranks_on, ring_bytes, small_gpt
from ranklab.measure.communication import CommunicationLog
from ranklab.ranks import rank_device
from shardlab.gpt import next_token_loss


def loss_and_bytes():
    model, (inputs, targets) = small_gpt(torch.float64), next(batches(seed=dist.get_rank()))
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    with CommunicationLog() as log:
        dist.all_reduce(loss.detach().clone())
        dist.all_reduce(model.head.norm.weight.grad)
    return loss.item(), ring_bytes(log), str(rank_device())


def test_ranks_of_a_cell_that_runs_twice(capsys):
    """Must catch: the first call's ranks alive beside those of the second; a world that does not
    work after it was closed so; models that differ from rank to rank, batches that do not; bytes
    of an all-reduce counted once; a sentence without the backend."""
    first = ranks_on(2)
    second = ranks_on(2)
    assert not first.members and len(second.members) == 2
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "It starts 2 ranks, backend gloo: ranks send through" in said[0]
    (loss, sent, device), (other, *_) = second.run(loss_and_bytes)
    plain = small_gpt(torch.float64)
    for seed, found in enumerate((loss, other)):
        wanted = next_token_loss(*_asked(plain, seed))
        assert far(torch.tensor(found, dtype=torch.float64), wanted.detach()) < 1e-12
    assert (sent, device) == (8 + 48 * 8, "cpu") and loss != other
    second.close()


FIRST_CELL = "from coursekit.lab import ranks_on\nworld = ranks_on(2)"


@pytest.mark.nightly  # by day: the labs that run
def test_cells_on_the_ranks_of_the_lab(tmp_path, monkeypatch):
    """Must catch: `%%ranks 2` that starts two ranks beside the lab's, or that nobody has loaded; a
    first cell that cannot run twice."""
    monkeypatch.chdir(tmp_path)
    with notebook(FIRST_CELL) as kernel:
        assert not kernel.run(FIRST_CELL).error
        assert (
            "sees 1"
            in kernel.run("%%ranks 2\nimport sys\nsys.mine = rank\nprint('sees', rank)").out
        )
        assert kernel.run("import sys\nworld.run(lambda: print(sys.mine))").out.count("\n") == 2
        assert not kernel.run("%%ranks\nassert sys.mine == rank").error
        assert not kernel.run("%%ranks 1\nassert world_size == 1").error
        assert kernel.run("print(world.run(lambda: 1))").out == "[1, 1]\n"


def _asked(model, seed):
    inputs, targets = next(batches(seed=seed))
    return model(inputs), targets


def test_the_small_gpt():
    """Must catch: biases left at zero where they were asked for, or drawn where not; a seed that is
    not set; sizes of the caller that lose."""
    models = [small_gpt(), small_gpt(), small_gpt(random_biases=True), small_gpt(seed=1)]
    norms = [sum(p.abs().sum().item() for p in model.parameters()) for model in models]
    assert norms[0] == norms[1] and len({*norms}) == 3
    assert models[0].blocks[0].attention.qkv.bias.abs().max() == 0
    assert models[2].blocks[0].attention.qkv.bias.abs().min() > 0
    assert len(small_gpt(layers=1, vocabulary=7).blocks) == 1


SETUP = """from coursekit.exercises.predictions import Predictions
predictions = Predictions("lab")
def average(): return of_nobody
def inside(): return len(3)"""


def test_a_missing_name_or_an_interrupted_import_is_one_sentence(tmp_path, monkeypatch):
    """Must catch: a traceback for a cell whose earlier cell was skipped; an error that the cell
    survives; other errors or interrupts without their traceback; a name that is missing within the
    package told as the reader's own; a package that an interrupt has left in parts, and that is
    imported once more, which may hang, or a package within it, which then lacks what it cannot
    register again; one of Python alone that lacks these parts from then on, or what later modules
    wrote into them; a solution with exit(), whose check ran in the kernel and ended it; gradients
    that a stop has left off."""
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("halves").mkdir()
    stopped = "import halves.a\nif stop:\n    raise KeyboardInterrupt"
    tmp_path.joinpath("halves/__init__.py").write_text(stopped)
    tmp_path.joinpath("halves/a.py").write_text("b = 3")
    tmp_path.joinpath("halves/book").mkdir()
    stopped = stopped.replace("halves.a", "halves.book.registry, halves.topic")
    tmp_path.joinpath("halves/book/__init__.py").write_text(stopped)
    tmp_path.joinpath("halves/book/registry.py").write_text("found = []")
    written = "from halves.book.registry import found\nfound.append(3)"
    tmp_path.joinpath("halves/topic.py").write_text(written)
    with notebook(SETUP) as kernel:
        missing = kernel.run("print(losses[-1])")
        assert missing.name == "NameError" and not missing.out
        assert missing.error == (
            "NameError: losses is not there yet: run the cells of this section from its heading"
            " down, or mend the name if you have written it."
        )
        assert "of_nobody is not there yet" in kernel.run("average()").error
        assert "----> 1 inside()" in kernel.run("inside()").error.replace("\x1b", "")
        elsewhere = kernel.run("exec('nowhere', {})")
        assert elsewhere.name == "NameError" and "heading" not in elsewhere.error
        assert kernel.run("losses = [2]\nprint(losses[-1])").out == "2\n"
        kernel.run("del predictions")
        assert "run the first cells of the lab, and then the cells of" in kernel.run("lab").error
        # an interrupted import, which cannot be repeated
        plain = kernel.run("raise KeyboardInterrupt")
        assert plain.name == "KeyboardInterrupt" and "----> 1 raise" in plain.error
        assert "----> 1 1 / 0" in kernel.run("1 / 0").error
        sent = "import cloudpickle as c, sys; print(c.loads(c.dumps(exit)) is sys.exit)"
        assert kernel.run(sent).out == "True\n"
        kernel.run("import builtins; builtins.stop = True")
        assert kernel.run("import halves").name == "KeyboardInterrupt"
        assert kernel.run("builtins.stop = False\nimport halves\nprint(halves.a.b)").out == "3\n"
        assert kernel.run("builtins.stop = True\nimport halves.book").name == "KeyboardInterrupt"
        again = "builtins.stop = False\nimport halves.book\nprint(halves.book.registry.found)"
        assert kernel.run(again).out == "[3]\n"
        kernel.run("import numpy, sys\nm = sys.modules\nm['numpy.ma.a'] = m.pop('numpy.ma', sys)")
        for cell in ("1 / 0", "import numpy.ma"):
            assert "the import of numpy was interrupted" in kernel.run(cell).error
        kernel.run("del m['numpy.ma.a']\nsys.modules['torch.part'] = sys")
        raised = "raise KeyboardInterrupt", "raise ImportError('partially')", "nowhere"
        for cell in (*raised, "import torch", "from torch import nn"):
            shown = kernel.run(cell)
            assert shown.error == (
                f"{shown.name}: the import of torch was interrupted, and cannot be repeated:"
                " restart the kernel, and run the lab from its first cell."
            )
        kernel.run("del m['torch.part'], m['torch']\nimport torch\ntorch.set_grad_enabled(False)")
        assert kernel.run("raise KeyboardInterrupt").name == "KeyboardInterrupt"
        assert kernel.run("print(torch.is_grad_enabled())").out == "True\n"
