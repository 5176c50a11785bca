"""The byte ledger against PyTorch's own bookkeeping, what it leaves behind, and modules weighed."""

import gc

import pytest
import torch
from solved import Given
from torch.profiler import ProfilerActivity, profile

from coursekit.formulas import quantities
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Counts, Ledger
from ranklab.measure.weigh import weigh
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss

SMALL = dict(layers=2, hidden=24, heads=4, vocabulary=53, max_sequence=16)
TRAPS = [
    dict(),
    dict(fused_attention=False, dropout=0.1),
    dict(key_value_heads=2, biases=0, gated_mlp=1, learned_positions=0, tied_head=0),
]
# bytes of numbers that an operation turns into tensors inside itself, such as the 0.9 of a
# multiplication
SCALARS = 16


def training(batch=3, sequence=7, foreach=False, **changes):
    """(model, optimizer, step): a small GPT and one training step of it. The batch is counted as
    part of the step."""
    torch.manual_seed(0)
    config = GPTConfig(**{**SMALL, **changes})
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)

    def step():
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        loss = next_token_loss(model(tokens), torch.ones_like(tokens))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def allocator_history(step):
    """Running total of the CPU allocator's events during a step, as the profiler records them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    total, history = 0, []
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            history.append(total)
    return history


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("changes", TRAPS)
def test_ledger_equals_the_allocators_events(changes, foreach):
    """Mutation: enter a storage without a weak reference (nothing is ever freed), or count views as
    new storages."""
    model, optimizer, step = training(foreach=foreach, **changes)
    step()
    gc.collect()
    alone = allocator_history(step)
    with Ledger(model, optimizer) as ledger:
        start = ledger.bytes.total
        watched = allocator_history(step)
    # kept by autograd, 8 bytes each, and not shown to hooks
    divisors = 0 if model.config.fused_attention else model.config.layers
    passed = {total - 8 * kept for total in (0, *watched) for kept in range(divisors + 1)}
    assert {point.bytes.total - start for point in ledger.timeline} <= passed
    for history in (alone, watched):
        assert 0 <= max(history) - (ledger.peak.bytes.total - start) <= SCALARS + 8 * divisors
        assert history[-1] == ledger.bytes.total - start == 0


@pytest.mark.parametrize("changes", TRAPS)
def test_fake_tensors_give_the_same_timeline(changes):
    """Mutation: keep only the total of a storage's shape instead of its nbytes, or drop the
    check of the fake mode."""
    model, optimizer, step = training(**changes)
    with Ledger(model, optimizer) as real:
        step()
    with FakeTensorMode():
        model, optimizer, step = training(**changes)
        with Ledger(model, optimizer) as fake:
            step()
    real_totals, fake_totals = (
        [point.bytes.total for point in ledger.timeline] for ledger in (real, fake)
    )
    assert real_totals == fake_totals and real.peak == fake.peak


def test_gradients_that_are_assigned():
    """Must catch: gradients called temporaries until an optimizer steps, or forever; lines before
    they were found that still call them so."""
    model = torch.nn.Linear(30, 20)
    sizes = [4 * p.numel() for p in model.parameters()]
    with Ledger(model) as ledger:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        while_asked = ledger.bytes
        model.weight.grad = None
        model.weight.grad = torch.zeros(20, 30)
    assert while_asked.gradients == ledger.bytes.gradients == sum(sizes)
    assert {point.bytes.temporaries for point in ledger.timeline} == {0}
    last = [point.bytes.gradients for point in ledger.timeline[-3:]]
    assert last == [sizes[0], sum(sizes), sum(sizes)]
    model.bias.grad = torch.ones(20)
    assert ledger.bytes.gradients == sizes[0], "nothing is found after the end"


class OnCopies(torch.optim.SGD):
    """Updates copies of the parameters, in an optimizer of its own where `inside`."""

    def __init__(self, parameters, copies, inside=False):
        self.held, self.inside = list(parameters), inside
        super().__init__(self.held if inside else copies, lr=0.1)

    @torch.no_grad()
    def step(self):
        if self.inside:
            copies = [torch.nn.Parameter(p.clone()) for p in self.held]
            torch.optim.SGD(copies, lr=0.1).step()
        else:
            super().step()


@pytest.mark.parametrize("known", [True, False])
def test_copies_that_an_optimizer_updates_are_states(known):
    """Must catch: copies called temporaries; parameters of the model called states; copies that
    were states from the step on only."""
    model = torch.nn.Linear(30, 20).bfloat16()
    elements = sum(p.numel() for p in model.parameters())

    def optimizer_of_copies():
        return OnCopies(model.parameters(), [p.detach().float() for p in model.parameters()])

    def step(optimizer):
        model(torch.ones(2, 30, dtype=torch.bfloat16)).float().sum().backward()
        for parameter, copy in zip(model.parameters(), optimizer.param_groups[0]["params"]):
            copy.grad = parameter.grad.float()
        optimizer.step()

    if known:
        optimizer = optimizer_of_copies()
        with Ledger(model, optimizer) as ledger:
            step(optimizer)
        assert ledger.timeline[0].bytes == Counts(parameters=2 * elements, optimizer=4 * elements)
    else:
        with Ledger(model) as ledger:
            optimizer = optimizer_of_copies()
            made = len(ledger.timeline)
            step(optimizer)
        assert ledger.timeline[made - 1].bytes.optimizer == 4 * elements
    assert ledger.bytes.optimizer == 4 * elements and ledger.bytes.parameters == 2 * elements


def test_copies_for_one_step_alone_and_another_model():
    """Must catch: a category by the class of an optimizer, or by the step that is innermost."""
    model, other = torch.nn.Linear(30, 20), torch.nn.Linear(20, 5, bias=False)
    optimizer = OnCopies(model.parameters(), (), inside=True)
    with Ledger(model, optimizer) as ledger:
        other(model(torch.ones(2, 30))).sum().backward()
        optimizer.step()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert {point.bytes.optimizer for point in ledger.timeline} == {0}
    assert ledger.bytes.activations == 4 * other.weight.numel()


def test_categories_at_each_phase():
    """Mutation: leave _keep_states' correction of earlier lines out: the states would count as
    temporaries during the step."""
    model, optimizer, step = training()
    config = {**model.config.quantities(), **quantities(recipe="fp32 Adam")}
    want = Given(**config)
    states = want.optimizer_bytes + want.step_counter_bytes
    with Ledger(model, optimizer) as ledger:
        step()
    assert ledger.timeline[0].bytes == Counts(parameters=want.parameter_bytes)
    last = {point.phase: point.bytes for point in ledger.timeline}
    assert last["backward"].gradients == want.gradient_bytes and last["backward"].optimizer == 0
    tokens = 3 * 7 * 8  # the step still has a name for them; nobody else holds the targets
    assert last["backward"].activations == tokens
    assert last["optimizer"].optimizer == states
    updating = [point for point in ledger.timeline if point.phase == "optimizer"]
    assert max(point.bytes.temporaries for point in updating) < states
    assert ledger.bytes == Counts(parameters=want.parameter_bytes, optimizer=states)


def test_who_allocated():
    """Mutation: never pop the module on the way out."""
    model, optimizer, _ = training()
    with Ledger(model) as ledger:
        logits = model(torch.zeros(3, 7, dtype=torch.long))
    found = ledger.by_module("activations")
    assert found["blocks.1.mlp.up"] == 3 * 7 * 4 * 24 * 4  # [B, S, F] in fp32
    assert found["blocks.1.attention.qkv"] == 3 * 7 * 3 * 24 * 4
    assert sum(found.values()) == ledger.bytes.activations
    del logits


def hooks_of(model):
    found = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return found, [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]


def test_a_step_that_raises_leaves_nothing_patched():
    """Mutation: unhook only when no error came."""
    model, optimizer, step = training()
    step()
    before = hooks_of(model), torch.UntypedStorage.resize_
    with Ledger(model, optimizer) as clean:
        step()

    class Boom(Exception):
        pass

    def explode(*_):
        raise Boom

    handle = model.blocks[1].mlp.register_forward_pre_hook(explode)
    ledger = Ledger(model, optimizer)
    with pytest.raises(Boom), ledger:
        step()
    handle.remove()
    assert (hooks_of(model), torch.UntypedStorage.resize_) == before
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    lines = len(ledger.timeline)
    optimizer.zero_grad()
    step()
    assert len(ledger.timeline) == lines  # it no longer looks
    gc.collect()  # the error held the step's tensors
    with Ledger(model, optimizer) as again:
        step()
    assert again.peak == clean.peak


def test_a_model_on_two_devices_is_refused():
    """Mutation: take the first parameter's device for the whole model's."""
    model, optimizer, _ = training()
    model.head.to("meta")
    with pytest.raises(ValueError, match=r"the model is on 2 devices \(cpu, meta\): a ledger"):
        Ledger(model, optimizer)


def test_any_module_can_be_weighed():
    """Mutation: take p.grad of every parameter as there."""
    conv = torch.nn.Sequential(torch.nn.Conv1d(3, 5, 3), torch.nn.BatchNorm1d(5))
    model = torch.nn.ModuleDict(dict(conv=conv, lstm=torch.nn.LSTM(5, 7)))
    model.lstm.bias_hh_l0.requires_grad_(False)
    with Ledger(model) as ledger:
        features = model.conv(torch.randn(2, 3, 11))
        out, _ = model.lstm(features.permute(2, 0, 1))
        out.sum().backward()
    parameters = sum(p.nbytes for p in model.parameters())
    assert ledger.bytes.parameters == parameters
    assert ledger.bytes.gradients == parameters - model.lstm.bias_hh_l0.nbytes
    assert ledger.timeline[0].bytes.temporaries == sum(b.nbytes for b in model.buffers())


def test_operations_inside_a_distributed_tensor():
    """Mutation: `sharded = ()` in the ledger: an operation on a DTensor is one line, and nobody
    counts what it gathers."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    with fake_ranks(2):
        rows = distribute_tensor(torch.ones(6, 5), init_device_mesh("cpu", (2,)), [Shard(0)])
        with Ledger(torch.nn.Identity()) as ledger:
            rows.softmax(0)
    lines = [(point.operation, point.bytes.temporaries) for point in ledger.timeline]
    assert lines[1:] == [("all_gather_into_tensor", 120), ("_softmax", 240)]


SIZES_OF_BOTH = dict(layers=2, hidden=64, heads=2, vocabulary=512, max_sequence=64)


def adam_step(watcher):
    """The bytes alive after a step of AdamW, watched."""
    torch.manual_seed(0)
    model, tokens = GPT(GPTConfig(**SIZES_OF_BOTH)), torch.zeros(4, 64, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with watcher(model, optimizer, tokens) as watching:
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        return watching, tokens, bytes_now(watching)


def mem_tracker(model, optimizer, tokens):
    # a second, which every collection of tests would wait for
    from torch.distributed._tools.mem_tracker import MemTracker

    watching = MemTracker()
    watching.track_external(model, optimizer, tokens)
    return watching


def bytes_now(watching, kind="current"):
    if isinstance(watching, Ledger):
        return watching.bytes
    (found,) = watching.get_tracker_snapshot(kind).values()
    return {getattr(category, "name", category): nbytes for category, nbytes in found.items()}


@pytest.mark.slow
def test_the_same_bytes():
    """Must catch: a gradient or a state counted twice or not at all; a temporary that the ledger
    does not see."""
    ledger, tokens, rest = adam_step(lambda model, optimizer, _: Ledger(model, optimizer))
    theirs, _, their_rest = adam_step(mem_tracker)
    assert rest.parameters == their_rest["PARAM"] > 0
    assert rest.gradients == their_rest["GRAD"] > 0
    assert rest.optimizer == their_rest["OPT"] > 0
    assert rest.activations == tokens.nbytes == their_rest["OTH"] and their_rest["ACT"] == 0
    assert rest.temporaries == their_rest["TEMP"] == 0
    peak = bytes_now(theirs, "peak")
    assert ledger.peak.bytes.total == peak["Total"]
    assert ledger.peak.bytes.parameters == peak["PARAM"]
    assert ledger.peak.phase == "backward"


def test_a_module_of_the_readers_own():
    """Must catch: a child's parameters counted again in its parent, a buffer taken for a parameter,
    or for an activation because batch norm keeps it for backward, an activation counted
    elsewhere."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.GELU())
    lines = {line.module: line for line in weigh(model, torch.randn(3, 5))}
    # the input it keeps, and its output, which the norm keeps
    assert lines["0"][2:] == (4 * (35 + 7), 0, 4 * 15 + 4 * 21)
    assert lines["1"].parameters == 4 * 14 and lines["1"].buffers == 4 * 14 + 8
    # output kept by GELU, and the batch's mean and inverse deviation
    assert lines["1"].activations == 4 * (21 + 2 * 7)
    assert sum(line.parameters for line in lines.values()) == sum(
        p.nbytes for p in model.parameters()
    )
    assert set(lines) == {"0", "1"}  # nothing is left over for the whole


def test_a_tied_weight_counts_once_and_fake_weighs_like_real():
    """Must catch: the tied head counted twice; a fake tensor's storage taken for empty."""
    config = GPTConfig(layers=2, hidden=24, heads=4, vocabulary=53, max_sequence=16)
    real = weigh(GPT(config), torch.zeros(2, 5, dtype=torch.long))
    with FakeTensorMode():
        fake = weigh(GPT(config), torch.zeros(2, 5, dtype=torch.long))
    assert real == fake
    assert sum(line.parameters for line in real) == sum(p.nbytes for p in GPT(config).parameters())
