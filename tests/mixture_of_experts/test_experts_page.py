"""The page and the lab of chapter 15 beside what runs: the stepper, the smallest version, the
picture's gates, the history of a run, numbers of the page."""

import csv
import re

import pytest
import torch
from pages import ROOT, chapter
from solved import Given

from coursekit.lab import batches, small_gpt
from coursekit.topics.mixture_of_experts import lab
from coursekit.topics.mixture_of_experts.exercises import route
from coursekit.topics.mixture_of_experts.pictures import (
    CHOSEN,
    SCORES_OF_A_TOKEN,
    draw_two_of_eight,
)
from coursekit.topics.mixture_of_experts.steps import FRAMES, ROUTINGS, dispatch_steps
from shardlab.experts.core import Experts, MixtureOfExperts, Router, mixtures
from shardlab.gpt import next_token_loss

PAGE = chapter("mixture-of-experts")


@pytest.mark.parametrize("routing", FRAMES.choices)
def test_the_stepper_loses_no_row(routing):
    """Must catch: a row on a rank without its expert; a row lost or doubled; rows that come back in
    another order than they left; a step without a picture."""
    said = dispatch_steps(routing)
    home, there, local, back = (said[at].rows for at in (2, 4, 5, 6))
    wanted = [(t, expert) for t, experts in enumerate(ROUTINGS[routing]) for expert in experts]
    for rows in (home, there, local):
        assert sorted((row.token, row.expert) for rank in rows for row in rank) == sorted(wanted)
    assert home == back and all(row.home == rank for rank in range(4) for row in home[rank])
    assert all(row.there == rank for rank in range(4) for row in (*there[rank], *local[rank]))
    assert all([r.expert for r in rank] == sorted(r.expert for r in rank) for rank in local)
    data = FRAMES.data(routing)
    assert len(data["frames"]) == len(data["say"]) == len(said) == 8
    most = max(map(len, local))
    assert f"Rank 0 has {most} rows" in said[5].detail or routing == 0


def test_rows_that_travel_are_those_of_the_formula():
    """Must catch: an even routing that is not even."""
    given = dict(experts=8, experts_per_token=2, expert_parallel=4, microbatch=1, sequence=2)
    given |= dict(hidden=1, dispatch_element_bytes=1, combine_element_bytes=1)
    moved = sum(row.home != row.there for rank in dispatch_steps(0)[4].rows for row in rank)
    assert 4 * moved == 4 * Given(**given).expert_layer_sent_bytes


def test_the_smallest_version_is_the_core():
    """Must catch: rows that come back in another order; gates that do not add up to 1; an expert
    whose rows are another's."""
    names = dict(torch=torch)
    exec(re.search(r"```python\n(def mixture.*?)```", PAGE, re.DOTALL)[1], names)
    torch.manual_seed(0)
    router, experts = Router(6, 4, 2), Experts(4, 6, 10, False, False)
    with torch.no_grad():
        for p in (*router.parameters(), *experts.parameters()):
            p.normal_()

    def expert(n):
        gelu = lambda x: torch.nn.functional.gelu(x, approximate="tanh")
        return lambda rows: gelu(rows @ experts.up[n]) @ experts.down[n]

    x = torch.randn(13, 6)
    found = names["mixture"](x, router.weight, [expert(n) for n in range(4)], 2)
    torch.testing.assert_close(found, MixtureOfExperts(router, experts)(x), rtol=1e-5, atol=1e-5)


def test_the_picture_has_the_gates_of_a_softmax():
    """Must catch: scores that do not add up to 1; another choice than the two largest."""
    assert sum(SCORES_OF_A_TOKEN) == pytest.approx(1)
    chosen, gates = route(torch.tensor([SCORES_OF_A_TOKEN]), torch.zeros(8), CHOSEN)
    svg = draw_two_of_eight()
    for gate in gates[0].tolist():
        assert f"× {gate:.2f}" in svg
    assert sorted(chosen[0].tolist()) == [1, 5]


def test_a_history_reads_the_load():
    """Must catch: the first layer's load; a mean of all steps; drops of the first steps."""
    history = lab.History()
    history.losses = [1.0] * 60
    history.loads = [[[4.0, 0.0], [1.0, 1.0]]] * 10 + [[[1.0, 1.0], [1.95, 0.05]]] * 50
    history.dropped = [0.0] * 10 + [0.5] * 50
    assert history.fullest == pytest.approx(1.95) and history.dead == 1
    assert history.dropped_percent == pytest.approx(50)
    lines = lab.balance_figure({"alone": history, "cured": history}).data
    assert [line.name for line in lines] == ["alone", "cured"] and lines[0].y[-1] == 1.95


def test_a_history_adds_the_last_layers_drops():
    """Must catch: drops of the first layer; loads that are counts."""
    model, history = small_gpt(seed=0, **lab.SIZES), lab.History()
    last = mixtures(model)[-1]
    last.capacity = 0.5
    tokens, targets = next(batches(2, 16))
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    history.add(loss, model)
    assert history.dropped == [pytest.approx(last.dropped.item() / 64)] and last.dropped >= 32
    assert sum(history.loads[0][-1]) == pytest.approx(8)


def test_the_page_has_the_planners_error():
    """Must catch: a class of published rows that is fitted anew beside the sentence of before."""
    with open(ROOT / "src/coursekit/data/speeds.csv", encoding="utf-8") as file:
        rows = {row["speed"]: row for row in csv.DictReader(file)}
    found = rows["Megatron-Bridge's experts"]
    assert f"off by {found['mean']}%" in PAGE and f"{found['other_half']}% on those held" in PAGE
    assert f"from {found['lowest']}% to +{found['highest']}%" in PAGE
