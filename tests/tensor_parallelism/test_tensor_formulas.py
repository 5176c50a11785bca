"""Formulas of tensor parallelism against one rank of many, on fake tensors: what it has, what it
keeps for backward, what it sends; against published counts; against a clock."""

import math
from itertools import product

import pytest
import torch
from dtypes import default_dtype
from night import at_night
from solved import Given, of_model
from torch_has import needs_fused_groups

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Ledger
from shardlab import collective_plans as plans
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)

# no number of ranks divides the inner size and the vocabulary
SMALL = dict(layers=1, hidden=48, heads=12, feed_forward=53, vocabulary=101, max_sequence=16)
PLAIN, NAIVE, AGAIN = dict(), dict(sequence_parallel=1), dict(sequence_parallel=1, regather=1)


class Rank:
    """A rank of a tensor-parallel group that has made one step, or only forward and loss."""

    def __init__(
        self,
        t,
        rank,
        way,
        recipe="fp32 Adam",
        microbatch=2,
        sequence=12,
        step=True,
        later=False,
        **changes,
    ):
        way = {"sequence_parallel": 0, "regather": 0, **way}
        config = GPTConfig(**{**SMALL, **changes})
        plan = gpt_plan(config)
        if way["sequence_parallel"]:
            plan = sequence_parallel(plan, regather=bool(way["regather"]))
        dtype = torch.bfloat16 if recipe.startswith("bf16") else torch.float32
        with fake_ranks(t, rank), FakeTensorMode(), default_dtype(dtype):
            tokens = torch.zeros(microbatch, sequence, dtype=torch.long)
            self.run(apply_tensor_parallel(GPT(config), plan), way, tokens, step, later)
        way |= dict(accumulation_steps=1, tensor_parallel=t, tensor_rank=rank)
        self.given = of_model(config, microbatch, sequence, recipe, **way)

    def run(self, model, way, tokens, step, later):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        if later:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        with Ledger(model, optimizer) as ledger, CommunicationLog() as log:
            loss = vocabulary_parallel_loss(model(tokens), tokens.clone(), model.config.vocabulary)
            self.saved, self.beside = ledger.bytes.activations, ledger.bytes.temporaries
            if step:
                loss.backward()
                if way["sequence_parallel"]:
                    sum_gradients(optimizer)
                optimizer.step()
        del loss
        self.after, self.sent, self.peak = ledger.bytes, log.totals(), ledger.peak.bytes.total

    def want(self, *targets):
        found = Given(**self.given)
        return tuple(getattr(found, name) for name in targets)


one_of_many = pytest.mark.ranks  # on fake ranks: seconds, not milliseconds
RECIPES = ["fp32 Adam", *at_night("bf16, no master")]
STYLES = (
    dict(),
    dict(learned_positions=0),
    dict(biases=0, tied_head=0),
    dict(biases=0, gated_mlp=1, learned_positions=0),
    dict(gated_mlp=1, tied_head=0),
)


@one_of_many
@pytest.mark.parametrize("t, rank", [(3, 2), *at_night((1, 0), (3, 0), (4, 3))])
def test_bytes_of_each_rank(t, rank):
    """Must catch: a bias of a row layer cut, or one of a column layer whole; a tied head counted
    twice; parts of one size on all ranks."""
    for changes in STYLES:
        found = Rank(t, rank, PLAIN, **changes)
        assert found.want("tensor_parameters") == (found.parameters,)
        states, tensors = found.want("tensor_states_bytes", "parameter_tensors")
        counters, after = 4 * tensors, found.after
        assert after.parameters + after.gradients + after.optimizer == states + counters


@one_of_many
@pytest.mark.parametrize(
    "way", [AGAIN, *at_night(PLAIN, NAIVE)], ids=("again", "tensor", "sequence")
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_saved_activations(way, recipe):
    """Must catch: the gathered input kept although it is gathered again, by autograd or by a hook
    of this book, or kept twice; a mask of the whole kept for its part; angles of rotary positions
    cut; the scores gathered."""
    attention = (dict(), dict(fused_attention=False), dict(fused_attention=False, dropout=0.1))
    for number, (kind, changes) in enumerate(product(attention, STYLES)):
        t, rank = ((3, 2), (4, 0), (1, 0))[number % 3]
        found = Rank(t, rank, way, recipe, step=False, **kind, **changes)
        assert found.want("tensor_activation_bytes") == (found.saved,), found.given
        assert found.beside <= 4 + 8 * 24  # the loss, and the targets


SHAPES = {
    "the loss": dict(vocabulary=4096, feed_forward=192, microbatch=8, sequence=60),
    "layers": dict(
        layers=4, hidden=96, feed_forward=384, vocabulary=256, microbatch=8, sequence=60
    ),
    "gated layers": dict(
        **dict(layers=3, hidden=96, feed_forward=384, vocabulary=256, microbatch=8, sequence=60),
        **dict(gated_mlp=1, biases=0, learned_positions=0, tied_head=0),
    ),
    "a long sequence": dict(
        **dict(layers=2, hidden=96, feed_forward=384, vocabulary=128, sequence=480),
        max_sequence=512,
    ),
    "states": dict(layers=4, hidden=192, feed_forward=768, vocabulary=512, microbatch=1),
}


@one_of_many
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "shape", ["the loss", "layers", *at_night("a long sequence", "states", "gated layers")]
)
def test_peak_of_a_rank(shape, recipe):
    """Within a fifth of a percent. Must catch: scores that outlive the loss; a whole input held by
    a name or by a hook; a gradient copied once more."""
    sizes = {"max_sequence": 64, **SHAPES[shape]}
    for way in (PLAIN, NAIVE, AGAIN):
        found = Rank(3, 0, way, recipe, later=True, **sizes)
        found.given.update(optimizer_mode=0, first_step=0)
        (peak,) = found.want("tensor_peak_bytes")
        assert peak == pytest.approx(found.peak, rel=2e-3), way


@pytest.mark.one_in(2)
@one_of_many
@pytest.mark.parametrize(
    "kind",
    (pytest.param(dict(), marks=needs_fused_groups), dict(fused_attention=False)),
    ids=("fused", "unfused"),
)
def test_saved_activations_of_grouped_queries(kind):
    """Where the ranks leave one key-value head to each, PyTorch need not copy the queries.

    Must catch: the conditions of the plain model's copies asked of all heads, not of the rank's."""
    for t, groups, microbatch in ((1, 6, 2), (3, 6, 1), (2, 2, 1), (2, 2, 2), (3, 3, 1), (2, 4, 1)):
        sizes = dict(key_value_heads=groups, microbatch=microbatch)
        found = Rank(t, 0, AGAIN, step=False, **sizes, **kind)
        assert found.want("tensor_activation_bytes") == (found.saved,), found.given


@one_of_many
@pytest.mark.parametrize(
    "way", [PLAIN, AGAIN, *at_night(NAIVE)], ids=("tensor", "again", "sequence")
)
def test_what_is_sent(way):
    """Must catch: an all-reduce of gate and up each; one for each norm; scores gathered; an input
    gathered a third time; the table of positions not added up."""
    for t, changes in product([2, 4], [dict(), dict(biases=0, gated_mlp=1, learned_positions=0)]):
        found = Rank(t, 0, way, "bf16, no master", **changes)
        given, sent = found.given, found.sent
        one, loss, whole = found.want(
            "tensor_message_bytes", "tensor_loss_message_bytes", "tensor_summed_bytes"
        )
        sums, gatherings, scatters = found.want(
            "tensor_all_reduces", "tensor_gatherings", "tensor_reduce_scatters"
        )
        assert sent["all_reduce"][:2] == (sums + 2 + (whole > 0), sums * one + loss + whole)
        if given["sequence_parallel"]:
            assert sent["all_gather"][:2] == (gatherings, gatherings * one)
            assert sent["reduce_scatter"][:2] == (scatters, scatters * one)
        else:
            assert set(sent) == {"all_reduce"} and gatherings == scatters == 0
        # a ring sends (t - 1)/t of what it scatters or gathers, and twice that of a sum
        logical = {name: total.nbytes for name, total in sent.items()}
        rings = (t - 1) * (2 * logical.pop("all_reduce") + sum(logical.values()))
        assert found.want("tensor_sent_bytes") == (-(-rings // t),)
        of_layer = "tensor_layer_forward_sent_bytes", "tensor_layer_backward_sent_bytes"
        layers = given["layers"] * sum(found.want(*of_layer))
        outside = 4 + given["regather"]  # embedding and head, forward and backward
        rest = outside * (t - 1) * one // t + (t - 1) * 2 * (loss + whole) // t
        assert layers + rest == pytest.approx(-(-rings // t), abs=2)


def test_share_of_a_layer():
    """Must catch: an all-reduce as one pass of the ring; the link of the other side of the node's
    border; compute not divided by t."""
    h, t, flops, node, net = 8192, 8, 500e12, 360e9, 50e9
    given = dict(hidden=h, key_value_size=h, feed_forward=4 * h, gated_mlp=0, tensor_parallel=t)
    given |= dict(microbatch=1, sequence=4096, compute_element_bytes=2, sequence_parallel=0)
    given |= dict(utilisation=1.0, flops_per_second=flops, node_bytes_per_second=node)
    given |= dict(link_bytes_per_second=net, node_latency_seconds=3e-6, latency_seconds=1e-5)
    message = 2 * 4096 * h
    steps = len(plans.ring_reduce_scatter(t)) + len(plans.ring_all_gather(t))
    scores = 12 * h * 4096 / (72 * h * h + 12 * h * 4096)
    for ranks_per_node, latency, bandwidth in ((8, 3e-6, node), (4, 1e-5, net)):
        found = Given(ranks_per_node=ranks_per_node, regather=0, **given)
        clock = 4 * steps * (latency + message / t / bandwidth)
        assert math.isclose(found.tensor_layer_message_seconds, clock, rel_tol=1e-12)
        compute = found.tensor_layer_compute_seconds
        wire = 4 * steps * message / t / bandwidth
        ratio = wire / (compute * (1 - scores))
        assert math.isclose(ratio, 2 / 9 * (t - 1) * flops / (h * bandwidth), rel_tol=1e-9)
        assert math.isclose(found.tensor_message_share, clock / (clock + compute))
    before = Given(ranks_per_node=8, regather=0, **given)
    again = Given(**{**given, **dict(ranks_per_node=8, regather=1, sequence_parallel=1)})
    wanted = 1.25 * before.tensor_layer_message_seconds
    assert math.isclose(again.tensor_layer_message_seconds, wanted)
