"""Activation checkpointing beside the plain function, and beside torch.utils.checkpoint."""

import copy
import dataclasses
import gc
import io
from functools import partial
from weakref import WeakSet

import pytest
import torch
from told import sections
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torchs

from coursekit.topics.activation_checkpointing.ladder import SmallestByFunction, SmallestByHooks
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.recompute import checkpoint
from shardlab.recompute.core import checkpoint_by_function
from shardlab.recompute.layers import (
    CheckpointedList,
    checkpoint_every,
    checkpoint_modules,  # noqa: F401 (told.md names it)
    checkpoint_some,
)
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import EXPENSIVE, PRODUCTS, checkpoint_selective

SMALL = dict(layers=5, hidden=24, heads=4, vocabulary=53, max_sequence=16, dropout=0.1)
KINDS = {
    "GPT-2": dict(),  # dropout on the scores rules out fused attention
    "fused": dict(dropout=0.0),
    "Llama": dict(key_value_heads=2, biases=0, gated_mlp=1, learned_positions=0, tied_head=0),
}
BOTH = [checkpoint, checkpoint_by_function]


def gpt(**changes):
    """float64, random biases."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SMALL, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def each_layer(model, call, n=1):
    model.blocks = checkpoint_every(model.blocks, n, call)
    return model


def step(model, rows=3, tokens=7):
    """(loss, every gradient, the state of the random numbers afterwards)"""
    torch.manual_seed(7)
    batch = torch.randint(model.config.vocabulary, (rows, tokens + 1))
    loss = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()], torch.get_rng_state()


def plain_step(kind="GPT-2"):
    """The step without checkpoints, made anew: bits depend on how many threads add, and another
    file's tests may have changed that."""
    return step(gpt(**KINDS[kind]))


def same(one, other):
    assert one[0] == other[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one[1], other[1], strict=True))
    assert torch.equal(one[2], other[2])


def some(chosen, model):
    model.blocks = checkpoint_some(model.blocks, chosen)
    return model


def offloaded(ahead, model):
    forward = model.forward

    def offload(tokens):
        with offload_activations(0, ahead):
            return forward(tokens)

    model.forward = offload
    return model


KEEPS = {"expensive": EXPENSIVE, "products": PRODUCTS, "one": (torch.ops.aten.addmm.default,)}
WAYS = {call.__name__: partial(each_layer, call=call) for call in BOTH}
WAYS |= {f"every {n}": partial(each_layer, call=checkpoint, n=n) for n in (2, 3, 5, 9)}
WAYS |= {f"some, {chosen}": partial(some, chosen) for chosen in ([], [0], [4, 1], range(5))}
WAYS |= {
    f"selective, {name}, every {n}": partial(
        each_layer, call=partial(checkpoint_selective, keep=keep), n=n
    )
    for name, keep in KEEPS.items()
    for n in (1, 3)
}
WAYS |= {f"on the host, {ahead} ahead": partial(offloaded, ahead) for ahead in (0, 1, 3)}
WAYS["on the host, every 2"] = lambda model: offloaded(1, each_layer(model, checkpoint, 2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_without(kind, way):
    """Must catch: random numbers not restored for the second run, or not put back after it; a
    parameter without a gradient because no argument requires one; a last group or layer left out;
    outputs in another order, or with other strides."""
    model = WAYS[way](gpt(**KINDS[kind]))
    same(step(model), plain_step(kind))
    assert list(model.state_dict()) == list(gpt(**KINDS[kind]).state_dict())


@pytest.mark.parametrize("hooks", [False, True])
def test_the_smallest_versions_on_the_page(hooks):
    """Plain gradients, but not with dropout; the core mends both. Must catch: a second run that
    records nothing; an activation under another's number."""
    by_hooks = lambda layer, x: SmallestByHooks(layer).first_run(x)
    call = by_hooks if hooks else SmallestByFunction.apply
    model = each_layer(gpt(**KINDS["fused"]), call)
    with Ledger(model) as ledger:
        same(step(model), plain_step("fused"))
    assert bool(ledger.bytes.temporaries) == hooks
    with pytest.raises(AssertionError):
        same(step(each_layer(gpt(), call)), plain_step())


def test_a_checkpointed_list_is_a_list():
    """Must catch: groups put into groups by a second call; a class that cannot be saved."""
    model = gpt(dropout=0.0)
    blocks = checkpoint_every(checkpoint_every(model.blocks, 2), 3)
    assert len(list(blocks)) == 2 and len(blocks) == 5 and blocks[4] is model.blocks[4]
    file = io.BytesIO()
    torch.save(blocks, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert isinstance(loaded, CheckpointedList) and len(list(copy.deepcopy(loaded))) == 2
    chain = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(3, 5, dtype=torch.double)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda k: kept[k]):
        y = checkpoint_every(chain, 2)(x)
    kept = [each for each in kept if each.numel()]  # some PyTorchs keep an empty one beside each
    assert torch.equal(y, chain(x)) and kept[0] is x and len(kept) == 2


def deleted(blocks):
    del blocks[0]
    return blocks


def inserted(blocks):
    blocks.insert(0, blocks[4])
    return blocks


PARTS = {  # of five layers, by twos: the numbers of the layers that run together, or one alone
    "all": (lambda blocks: blocks[:5], [[0, 1], [2, 3], [4]]),
    "in the middle": (lambda blocks: blocks[1:-1], [[1], [2, 3]]),
    "every other": (lambda blocks: blocks[::2], [[0], [2], [4]]),
    "backwards": (lambda blocks: blocks[::-1], [[4], [3, 2], [1, 0]]),
    "reversed": (reversed, [[4], [3, 2], [1, 0]]),
    "of a slice": (lambda blocks: blocks[1:][:2], [[1], [2]]),
    "one added": (lambda blocks: blocks.append(blocks[0]), [[0, 1], [2, 3], [4], 0]),
    "one inserted": (inserted, [[4, 0], [1, 2], [3], 4]),
    "one deleted": (deleted, [[1, 2], [3, 4]]),
    "some": (lambda blocks: checkpoint_some(blocks, [1, 3])[1:4], [[1], 2, [3]]),
}


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.Sequential])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_checkpointed_list(name, kind):
    """A loop over a slice, as in models of transformers, recomputes as a loop over all does.

    Must catch: a slice without its checkpoints, or with those of other layers."""
    taken, want = PARTS[name]
    layers = [nn.Linear(1, 1) for _ in range(5)]
    blocks = kind(*layers) if kind is nn.Sequential else kind(layers)
    found = [
        layers.index(each)
        if isinstance(each, nn.Module)
        else [layers.index(layer) for layer in each.args[0].args[0]]  # by(run(layers))
        for each in taken(checkpoint_every(blocks, 2))
    ]
    assert found == want


# --- bytes ----------------------------------------------------------------------------------------


def torch_selective(function, *args):
    def policy(_, operator, *args, **named):
        keeps = operator.overloadpacket in EXPENSIVE
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return torchs(function, *args, use_reentrant=False, context_fn=contexts)


def weighed(model):
    """(bytes kept at the end of forward, most bytes) of a step, beside what the model has."""
    tokens = torch.zeros(3, 7, dtype=torch.long)
    step(model)
    model.zero_grad()
    with Ledger(model) as ledger:
        start = ledger.bytes.total
        loss = next_token_loss(model(tokens), tokens)
        kept = ledger.bytes.total - start
        loss.backward()
    return kept, ledger.peak.bytes.total - start


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (checkpoint, partial(torchs, use_reentrant=False)),
        (checkpoint_by_function, partial(torchs, use_reentrant=True)),
        (checkpoint_selective, torch_selective),
    ],
)
def test_bytes_are_not_more_than_torchs(ours, theirs):
    """Must catch: an activation of the second run that stays until the graph dies; inputs kept by a
    closure as well; a second run that does not stop at the last activation; a kept output that
    stays after it was taken, or is copied."""
    whole = ours is not checkpoint_selective
    model = partial(gpt, dropout=0.1 if whole else 0.0)
    kept, peak = weighed(each_layer(model(), ours))
    their_kept, their_peak = weighed(each_layer(model(), theirs))
    plain_kept, plain_peak = weighed(model())
    assert kept <= their_kept < (0.5 if whole else 1) * plain_kept
    assert peak <= their_peak < (0.9 if whole else 1) * plain_peak


@pytest.mark.parametrize("call", BOTH)
def test_nothing_is_alive_after_a_step(call):
    """Must catch: the second run's hook returning an activation with its graph, a circle that no
    collector sees."""
    model, alive = each_layer(gpt(), call), WeakSet()

    class Witness(nn.Module):
        def forward(self, x):
            y = x.exp()  # keeps its own output
            alive.add(y)
            return y.log()

    for number in range(5):
        model.blocks[number].mlp = nn.Sequential(model.blocks[number].mlp, Witness())
    gc.disable()
    try:
        step(model)
        assert not alive
    finally:
        gc.enable()


# --- what a user does -----------------------------------------------------------------------------


def chain(calls=None):
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh()).double()

    def function(x):
        if calls is not None:
            calls.append(1)
        return layers(x)

    return layers, function


def x_of(seed=2):
    torch.manual_seed(seed)
    return torch.randn(3, 4, dtype=torch.double, requires_grad=True)


def test_a_backward_twice_and_a_gradient_of_a_gradient():
    """Must catch: an activation that a second backward does not find; activations cut off from
    their graph, so that a gradient's gradient is zero."""
    layers, function = chain()
    x = x_of()
    y = checkpoint(function, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    once = torch.autograd.grad(layers(x).sum(), x)[0]
    assert torch.equal(x.grad, once + once)

    def of_gradient(call):
        (g,) = torch.autograd.grad(call(function, x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [x, *layers.parameters()], allow_unused=True)

    pairs = zip(of_gradient(checkpoint), of_gradient(lambda f, x: f(x)), strict=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in pairs)


def nest(call, calls):
    """Two checkpoints, each of two, each of a layer: how often layers run in a step."""

    def layer(x):
        calls.append(1)
        return torch.tanh(x * 1.5)

    def two(inner, x):
        return call(inner, call(inner, x))

    return partial(two, partial(two, layer))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of torch's
@pytest.mark.parametrize("reentrant", [False, True])
def test_nested(reentrant):
    """Must catch: inputs of inner checkpoints read in forward, which runs the outer one at once;
    inner inputs kept although an outer checkpoint could make them again."""
    ours = checkpoint_by_function if reentrant else checkpoint
    counts, gradients = [], []
    for call in (ours, partial(torchs, use_reentrant=reentrant), lambda f, x: f(x)):
        calls, x = [], x_of()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
            call(nest(call, []), x)
        y = call(nest(call, calls), x)
        y.sum().backward()
        counts.append((len(calls), len([k for k in kept if k.numel()])))
        gradients.append(x.grad)
    assert counts[0] == counts[1] and torch.equal(gradients[0], gradients[2])


@dataclasses.dataclass
class Out:
    y: Tensor


def test_arguments_and_outputs_of_any_kind():
    """Must catch: an argument by name, a list of tensors, a number or an output in a dictionary
    lost; a dataclass refused as an output without a gradient; the class Tensor, given as an
    argument, taken for the place of a tensor."""
    x, z = x_of(), x_of(3)

    def function(kind, pair, scale, *, shift, flag):
        assert kind is Tensor and flag == "on"
        return {"out": Out((pair[0] * pair[1]).tanh() * scale + shift), "n": 3}

    outputs = []
    for call in (checkpoint, lambda f, *args, **named: f(*args, **named)):
        x.grad = z.grad = None
        output = call(function, Tensor, [x, z], 2.5, shift=x * 2, flag="on")
        output["out"].y.square().sum().backward()
        outputs.append((output["n"], output["out"].y, x.grad, z.grad))
    assert all(torch.equal(a, b) for a, b in zip(outputs[0][1:], outputs[1][1:]))


class Odd(nn.Sequential):
    """A module that does something between its layers."""

    def forward(self, x):
        return super().forward(x) + x


def back(call, function, *args, **named):
    """A checkpoint and its backward."""
    call(function, *args, **named).sum().backward()


def changed(first, second, same=False):
    """A function that does something else the second time."""
    functions = iter((first, second))
    back(checkpoint, lambda x: next(functions)(x), x_of(), same=same)


def written(call, write):
    """Parameters that are written between forward and backward, after a step that was right."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    back(call, layer, x_of())
    loss = call(layer, x_of()).sum()
    write(layer, torch.optim.SGD(layer.parameters(), 0.1))
    loss.backward()


def others_in_backward():
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    others = {f"0.{name}": (own * 2).detach() for name, own in layer.named_parameters()}
    others = {name: nn.Parameter(other) for name, other in others.items()}
    inside = checkpoint_every(nn.Sequential(layer), 1)
    torch.func.functional_call(inside, others, (x_of(),)).sum().backward()


def written_argument():
    x = [x_of() * 2]
    y = checkpoint(lambda xs: xs[0].tanh(), x)
    x[0].detach().add_(1)
    y.sum().backward()


def loaded(layer, sgd):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


@pytest.mark.parametrize("call, said", sections()["test_recompute::test_what_is_refused"])
def test_what_is_refused(call, said):
    """Must catch: gradients of parameters, or elements, that forward did not have; a digest in
    which the order does not count; a second run that stops early although it was asked to be the
    same; True taken for 1, -1 for the last."""
    error, words = said.split(": ", 1)
    with pytest.raises(Exception) as caught:
        eval(call, globals())
    assert error in [kind.__name__ for kind in type(caught.value).__mro__]
    assert words in str(caught.value)


def test_without_gradients():
    """Must catch: inputs kept under no_grad."""
    with torch.no_grad():
        assert checkpoint(chain()[1], x_of()).grad_fn is None


class Clamped(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.3, 0.3)
        return super().forward(x).tanh() @ self.weight


def test_parameters_in_whose_use_nothing_is_wrong():
    """Must catch: writes of the second run that the next backward takes for the user's; a parameter
    that came as an argument and is taken for a replaced one."""

    def gradients(call):
        torch.manual_seed(0)
        layer, other = Clamped(4, 4).double(), nn.Linear(4, 4).double()

        def twice(weight):
            return other(weight @ weight[:, :2] @ weight[:2])

        loss = call(layer, x_of()).tanh().sum() + call(twice, other.weight).tanh().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [each.grad for each in (*layer.parameters(), *other.parameters())]

    def plain(function, *args):
        return function(*args)

    assert all(map(torch.equal, gradients(checkpoint), gradients(plain)))


@pytest.mark.parametrize("call", BOTH)
def test_half_of_the_outputs(call):
    """Must catch: an output whose gradient is None handed to the backward within backward."""
    layers, _ = chain()
    x = x_of()
    y, unused, constant = call(lambda x: (layers(x), x * 3, torch.ones(2)), x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(layers(x).sum(), x)[0])
