"""Activation checkpointing beside the plain function, and beside torch.utils.checkpoint."""

import copy
import dataclasses
import gc
import io
from functools import partial
from weakref import WeakSet

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs

from coursekit.topics.activation_checkpointing.ladder import SmallestByFunction, SmallestByHooks
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.recompute import checkpoint, checkpoint_by_function
from shardlab.recompute.hardened.determinism import CheckpointError
from shardlab.recompute.layers import CheckpointedList, checkpoint_every, checkpoint_some
from shardlab.recompute.selective import checkpoint_selective

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


class Called(nn.Module):
    """A layer in a checkpoint of some kind."""

    def __init__(self, call, layer):
        super().__init__()
        self.call, self.layer = call, layer

    def forward(self, x):
        return self.call(self.layer, x)


def each_layer(model, call):
    model.blocks = nn.ModuleList(Called(call, block) for block in model.blocks)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", BOTH)
def test_gradients_are_those_without(kind, call):
    """To the last bit, with dropout, and with fused attention.

    Must catch: the state of the random numbers not restored for the second run, or not put back
    after it; a parameter that gets no gradient because no argument requires one."""
    same(step(each_layer(gpt(**KINDS[kind]), call)), plain_step(kind))


@pytest.mark.parametrize("hooks", [False, True])
def test_the_smallest_versions_on_the_page(hooks):
    """The plain gradient, to the last bit, but not with dropout; what the hooks keep stays alive
    after the step. The core mends both.

    Must catch: a second run that records nothing; an activation under another's number."""
    by_hooks = lambda layer, x: SmallestByHooks(layer).first_run(x)
    call = by_hooks if hooks else SmallestByFunction.apply
    model = each_layer(gpt(**KINDS["fused"]), call)
    with Ledger(model) as ledger:
        same(step(model), plain_step("fused"))
    assert bool(ledger.bytes.temporaries) == hooks
    with pytest.raises(AssertionError):
        same(step(each_layer(gpt(), call)), plain_step())


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_every_n(n):
    """Must catch: the last group dropped where n does not divide the layers; names that change."""
    plain, ours = gpt(), gpt()
    ours.blocks = checkpoint_every(ours.blocks, n)
    same(step(ours), plain_step())
    assert list(ours.state_dict()) == list(plain.state_dict())


def test_a_checkpointed_list_is_a_list():
    """Copied, saved, wrapped twice, indexed; nn.Sequential runs its groups itself.

    Must catch: groups put into groups by a second call; a class that cannot be saved."""
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
    number = {id(layer): place for place, layer in enumerate(layers)}
    found = [
        number[id(each)]
        if isinstance(each, nn.Module)
        else [number[id(layer)] for layer in each.layers]
        for each in taken(checkpoint_every(blocks, 2))
    ]
    assert found == want


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2", None])
def test_a_bad_n_is_refused(n):
    """Must catch: True taken as 1, or 0 as all."""
    with pytest.raises(ValueError, match=f"n = {n!r}: a checkpoint has a whole number of layers"):
        checkpoint_every(nn.Sequential(), n)


def test_another_container_is_refused():
    """Must catch: a module that does something between its layers, run as a chain."""

    class Odd(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + x

    with pytest.raises(TypeError, match="layers are a Odd: only the layers of a ModuleList"):
        checkpoint_every(Odd(nn.Linear(2, 2)), 1)


# --- bytes ----------------------------------------------------------------------------------------


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
    ],
)
def test_bytes_are_not_more_than_torchs(ours, theirs):
    """Kept after forward, and at the peak; both much less than without.

    Must catch: an activation of the second run that stays until the graph dies; inputs kept by a
    closure as well; a second run that does not stop at the last activation."""
    kept, peak = weighed(each_layer(gpt(), ours))
    their_kept, their_peak = weighed(each_layer(gpt(), theirs))
    plain_kept, plain_peak = weighed(gpt())
    assert kept <= their_kept < 0.5 * plain_kept
    assert peak <= their_peak < 0.9 * plain_peak


@pytest.mark.parametrize("call", BOTH)
def test_nothing_is_alive_after_a_step(call):
    """Without the garbage collector's help.

    Must catch: the second run's hook returning an activation with its graph, a circle that no
    collector sees."""
    model, alive = each_layer(gpt(), call), WeakSet()

    class Witness(nn.Module):
        def forward(self, x):
            y = x.exp()  # keeps its own output
            alive.add(y)
            return y.log()

    for block in model.blocks:
        block.layer.mlp = nn.Sequential(block.layer.mlp, Witness())
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
    """Checkpoints in checkpoints run as often as torch runs them, and give the same gradients.

    Must catch: inputs of inner checkpoints read in forward, which runs the outer one at once; inner
    inputs kept although an outer checkpoint could make them again."""
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


def test_arguments_and_outputs_of_any_kind():
    """Must catch: an argument by name, a list of tensors, a number or an output in a dictionary
    lost."""
    x, z = x_of(), x_of(3)

    def function(pair, scale, *, shift, flag):
        assert flag == "on"
        return {"y": (pair[0] * pair[1]).tanh() * scale + shift, "n": 3}

    outputs = []
    for call in (checkpoint, lambda f, *args, **named: f(*args, **named)):
        x.grad = z.grad = None
        output = call(function, [x, z], 2.5, shift=x * 2, flag="on")
        output["y"].square().sum().backward()
        outputs.append((output["n"], output["y"], x.grad, z.grad))
    assert all(torch.equal(a, b) for a, b in zip(outputs[0][1:], outputs[1][1:]))


@dataclasses.dataclass
class Out:
    y: torch.Tensor


def test_a_dataclass_and_a_class_among_arguments():
    """Must catch: a dataclass refused as an output without a gradient; the class Tensor, given as
    an argument, taken for the place of a tensor."""
    x = x_of()

    def function(kind, x):
        assert kind is torch.Tensor
        return Out(x.tanh() * x)

    gradients = []
    for call in (checkpoint, lambda f, *args: f(*args)):
        x.grad = None
        call(function, torch.Tensor, x).y.square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        (lambda xs: xs[0] * 2, lambda x: [[x]], "an argument is a list"),
        (lambda xs: xs["x"] * 2, lambda x: [{"x": x}], "an argument is a dict"),
        (lambda x: {"y": x * 2}, lambda x: [x], "the function returns a dict"),
        (lambda x: Out(x * 2), lambda x: [x], "the function returns a Out"),
    ],
)
def test_what_a_function_hides_from_autograd(function, arguments, sentence):
    """Must catch: a list argument whose tensor gets no gradient, and no word; an output in a
    dictionary that has no graph."""
    with pytest.raises(CheckpointError, match=sentence):
        checkpoint_by_function(function, *arguments(x_of()))


def test_without_gradients():
    """Must catch: inputs kept under no_grad; a typed sentence that comes only in backward."""
    _, function = chain()
    with torch.no_grad():
        assert checkpoint(function, x_of()).grad_fn is None
    with pytest.raises(CheckpointError, match="nothing that checkpoint.. was given or used"):
        checkpoint(torch.tanh, torch.ones(3))
    with pytest.raises(CheckpointError, match="checkpoint_by_function.. was given or used"):
        checkpoint_by_function(torch.tanh, torch.ones(3)).sum().backward()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("create_graph", [False, True])
def test_what_a_function_cannot(create_graph):
    """A backward within backward fills .grad of every parameter it meets.

    Must catch: autograd.grad() that fills weight.grad behind one's back."""
    layers, function = chain()
    x = x_of()
    with pytest.raises(CheckpointError, match="supports backward.. only"):
        y = checkpoint_by_function(function, x).sum()
        y.backward(create_graph=True) if create_graph else torch.autograd.grad(y, x)
    assert all(parameter.grad is None for parameter in layers.parameters())


def other_the_second_time(first, second):
    runs = []

    def function(x):
        runs.append(1)
        return (first if len(runs) == 1 else second)(x)

    return function


CHANGES = {
    "other sizes": (
        lambda x: x.tanh(),
        lambda x: x[:2].tanh(),
        False,
        "in the second run it is 2x4",
    ),
    "fewer": (lambda x: x.tanh().exp(), lambda x: x.tanh(), False, "saved 2 activations and the"),
    "other elements": (
        lambda x: x.tanh(),
        lambda x: (x * 1.5).tanh(),
        True,
        "has other elements in the second run",
    ),
    "more at the end": (lambda x: x.tanh(), lambda x: x.tanh().exp(), True, "and the second 2"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_function_that_does_something_else(change):
    """Sizes and numbers always, elements and what comes after the last one when asked.

    Must catch: a digest left out, or of the sum alone; a second run that stops early although it
    was asked to be the same."""
    first, second, asked, words = CHANGES[change]
    y = checkpoint(other_the_second_time(first, second), x_of(), same=asked)
    with pytest.raises(CheckpointError, match=words):
        y.sum().backward()


WRITES = {
    "a step": lambda layer, sgd: sgd.step(),
    "a state that is loaded": lambda layer, sgd: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("call", [checkpoint, checkpoint_selective])
def test_parameters_that_are_written_before_backward(call, write):
    """Autograd refuses them without a checkpoint, and a checkpoint does, too.

    Must catch: a gradient of parameters that forward did not have."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    sgd = torch.optim.SGD(layer.parameters(), 0.1)
    call(layer, x_of()).sum().backward()
    loss = call(layer, x_of()).sum()
    WRITES[write](layer, sgd)
    with pytest.raises(CheckpointError, match="was written after the first run"):
        loss.backward()


def test_parameters_that_are_others_in_backward():
    """Must catch: gradients with the model's own parameters, of a forward that had others."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    others = {name: (own * 2).detach().requires_grad_() for name, own in layer.named_parameters()}
    inside = Called(checkpoint, layer)
    others = {f"layer.{name}": other for name, other in others.items()}
    y = torch.func.functional_call(inside, others, (x_of(),))
    with pytest.raises(CheckpointError, match="is another parameter in the second run"):
        y.sum().backward()


class Clamped(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.3, 0.3)
        return super().forward(x).tanh() @ self.weight


def test_parameters_in_whose_use_nothing_is_wrong():
    """A function writes its own, in each run; a parameter is an argument and the function's, too.

    Must catch: writes of the second run that the next backward takes for the user's; a parameter
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


def test_elements_in_another_order_are_other_elements():
    """Must catch: a digest that is a sum, in which the order does not count."""
    y = checkpoint(
        other_the_second_time(lambda x: x.flip(0).exp(), lambda x: x.exp()), x_of(), same=True
    )
    with pytest.raises(CheckpointError, match="other elements"):
        y.sum().backward()


@pytest.mark.parametrize("call", BOTH)
def test_half_of_the_outputs(call):
    """Must catch: an output whose gradient is None handed to the backward within backward."""
    layers, _ = chain()
    x = x_of()
    y, unused, constant = call(lambda x: (layers(x), x * 3, torch.ones(2)), x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(layers(x).sum(), x)[0])


@pytest.mark.parametrize("call", [checkpoint, checkpoint_by_function])
def test_the_door_gives_the_core(call):
    """Must catch: hardened=False that gives the hardened checkpoint, whose second run stops at the
    last activation, or whose backward is refused; an option that the core has not, left out."""
    runs, x = [], torch.ones(2, requires_grad=True)

    def twice(x):
        y = x.exp()
        runs.append(y)  # what comes after the last activation
        return y

    for hardened, expected in ((False, 2), (True, 1 if call is checkpoint else 2)):
        runs.clear()
        x.grad = None
        call(twice, x, hardened=hardened).sum().backward()
        assert len(runs) == expected and torch.equal(x.grad, x.exp())
    if call is checkpoint:
        with pytest.raises(CheckpointError, match="the core compares nothing"):
            checkpoint(twice, x, same=True, hardened=False)
    else:
        y = call(twice, x, hardened=False)
        torch.autograd.grad(y.sum(), x, allow_unused=True)
        with pytest.raises(CheckpointError, match="supports backward"):
            torch.autograd.grad(call(twice, x).sum(), x, allow_unused=True)
