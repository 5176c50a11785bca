"""fast_gpt.py has the loss and the gradients of gpt.py."""

import copy
from functools import partial

import pytest
import torch

from coursekit.topics.hardware.fast_gpt import chunked_loss, compile_blocks, padded_loss
from shardlab.common.backward import NoSecondGradient
from shardlab.gpt import GPT, GPTConfig, next_token_loss

LLAMA = dict(learned_positions=0, biases=0, gated_mlp=1, tied_head=0, key_value_heads=2)
MODELS = {
    "tied": dict(vocabulary=19),
    "untied, two chunks of rows": dict(vocabulary=83, tied_head=0),
    "nothing to pad": dict(vocabulary=64),
    "Llama": dict(vocabulary=65, **LLAMA),
}
IN_CHUNKS = partial(chunked_loss, chunk_tokens=7)  # 33 tokens: the last chunk is smaller


def random_model(**sizes):
    """In float64, every parameter random: a forgotten bias of zero would not show."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=3, hidden=20, heads=2, max_sequence=11, **sizes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def plain_loss(model, tokens, targets):
    return next_token_loss(model(tokens), targets)


def loss_and_gradients(model, loss_of, padded=(), above=1.0):
    """The loss, and all gradients of `above` times it; targets of these sequences are padding."""
    draw = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(model.config.vocabulary, (2, 3, 11), generator=draw)
    targets[0, 4:9] = -100
    targets[list(padded)] = -100
    loss = loss_of(model, tokens, targets)
    named = dict(model.named_parameters())
    found = torch.autograd.grad(above * loss, list(named.values()))
    return dict(zip(named, found), loss=loss.detach())


def assert_same(ours, theirs, relative):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name].to(value.dtype),
            value,
            rtol=0,
            atol=relative * value.abs().nan_to_num().max().item(),
            equal_nan=True,
            msg=lambda said, name=name: f"{name}: {said}",
        )


@pytest.mark.parametrize("loss_of", [padded_loss, IN_CHUNKS, chunked_loss])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name, loss_of):
    """Must catch: rows of the padding in the softmax, or given a gradient; targets of -100 that
    count; the last chunk left out; the gradient from above ignored; a tied weight that gets one of
    its two gradients; the head's norm left out."""
    model = random_model(**MODELS[name])
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for above in (1.0, -3.0):
        found = loss_and_gradients(model, loss_of, above=above)
        assert_same(found, loss_and_gradients(model, plain_loss, above=above), 1e-12)
    assert shapes == {name: tensor.shape for name, tensor in model.state_dict().items()}


def test_refusals():
    """Must catch: a target that is a row of the padding, of which the loss is infinite; gradients
    of gradients for which the chunks are constants."""
    model, tokens = random_model(vocabulary=19), torch.zeros(1, 5, dtype=torch.int64)
    for loss_of in (padded_loss, IN_CHUNKS):
        with pytest.raises(IndexError, match="Target 19 is out of bounds"):
            loss_of(model, tokens, tokens + 19)
    with pytest.raises(NoSecondGradient, match="chunked_loss keeps no scores.*take padded_loss"):
        torch.autograd.grad(
            IN_CHUNKS(model, tokens, tokens), model.head.norm.bias, create_graph=True
        )


def test_nothing_but_padding():
    """Must catch: gradients that are not a number, where the plain model's are zero."""
    model, padded = random_model(vocabulary=19), (0, 1, 2)
    found = loss_and_gradients(model, IN_CHUNKS, padded)
    assert_same(found, loss_and_gradients(model, plain_loss, padded), 0)
    assert found["loss"].isnan() and not found["head.norm.bias"].any()


@pytest.mark.parametrize("autocast", [False, True])
def test_small_gradients_in_16_bits(autocast):
    """Must catch: a division by the number of targets in 16 bits, before the scale; a loss in 16
    bits; autocast that the chunks do not hear of."""
    exact = random_model(vocabulary=19, tied_head=0)
    with torch.no_grad():
        exact.head.scores.weight.mul_(1e-4)
    narrow = copy.deepcopy(exact).to(torch.float32 if autocast else torch.float16)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        found = loss_and_gradients(narrow, IN_CHUNKS, above=1e3)
    assert found["loss"].dtype is torch.float32
    wanted = loss_and_gradients(exact, plain_loss, above=1e3)
    assert found["loss"].item() == pytest.approx(wanted["loss"].item(), rel=5e-5)
    assert_same(found, wanted, 1e-2)


def test_blocks_are_compiled_once():
    """Must catch: blocks that are each compiled anew, which takes minutes; other names in the state
    dict; a block that is left out; other values."""
    model, graphs, calls = random_model(vocabulary=19), [], []

    def counting(graph, inputs):
        graphs.append(graph)
        return lambda *args: calls.append(1) or graph(*args)

    theirs, names = loss_and_gradients(model, plain_loss), list(model.state_dict())
    torch.compiler.reset()  # of blocks that it gave up in another test
    compile_blocks(model, backend=counting)
    assert_same(loss_and_gradients(model, IN_CHUNKS), theirs, 1e-12)
    assert (len(graphs), len(calls)) == (1, 3) and list(model.state_dict()) == names
