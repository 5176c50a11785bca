"""Every hidden wait of a step, with its line, without a GPU."""

import pytest
import torch

from coursekit.lab import check
from coursekit.topics.where_the_time_goes.exercises import read_at_the_end
from ranklab.measure.waits import HostWaits

BUG_HUNT = """
import torch
from shardlab.gpt import next_token_loss


def mean_and_largest(model, optimizer, data):
    losses, norms = [], []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    return torch.stack([torch.stack(losses).mean(), torch.stack(norms).max()]).tolist()
"""


def test_each_kind_of_wait_has_its_line():
    """Must catch: a kind that is missing; a line of PyTorch instead of the caller's; a value that a
    GPU's program keeps on the host, taken for one of the GPU; .cpu().tolist() counted twice."""
    x = torch.arange(6.0) - 2
    mask = x > 0
    number = torch.tensor(3.0)
    with HostWaits(cuda=False) as waits:
        x.sum().item()  # .item()
        float(x[0])  # .item()
        if x.isnan().any():  # .item()
            pass
        f"{x.mean():.2f}"  # .item()
        x[mask]  # index by a mask
        x[mask] = 1.0  # fills
        x[mask] = x[:3].clone()  # index by a mask
        x.nonzero()  # nonzero()
        torch.masked_select(x, mask)  # masked_select()
        torch.unique(x)  # unique()
        torch.equal(x, x)  # equal()
        x.cpu().tolist()  # .cpu()
        x.tolist()  # .tolist()
        repr(x)  # print
        torch.repeat_interleave(x, torch.ones(6, dtype=torch.long))  # repeat_interleave()
        (number * 2).item()  # number was made before
        (torch.tensor([1]) + 1).item()  # on the host
    found = [(wait.cause, wait.source.split("# ")[-1]) for wait in waits.found]
    known = {cause for cause, _ in found}
    assert [pair for pair in found if pair[0] != pair[1]] == [(".item()", "number was made before")]
    assert len(known) == 10 and waits.total() == 15
    assert waits.found.most_common(1)[0][0].place.startswith("test_waits.py:")


@pytest.mark.parametrize(
    "mode", [dict(foreach=False), dict(foreach=True), dict(fused=True)], ids=str
)
def test_counters_of_an_optimizer_stay_on_the_host(mode):
    """Must catch: 28 waits for 28 tensors; a real wait of an optimizer, left out with them."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), **mode)

    def step():
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()

    step()  # its counters are there before the search
    with HostWaits(cuda=False) as waits:
        step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert str(waits) == "the host never waits for the GPU"
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=1)
    with HostWaits(cuda=False) as waits:
        lbfgs.step(lambda: model(torch.ones(4, 3)).square().sum())
    assert waits.total() and "lbfgs.step" in str(waits)


@pytest.mark.slow
def test_the_bug_hunt_takes_one_read_of_both_numbers():
    """Must catch: a list that is refused; the solution's two reads asked for to the count."""
    exec(BUG_HUNT, found := {})
    said = str(check(read_at_the_end, found["mean_and_largest"]))
    assert "right:" in said, said
