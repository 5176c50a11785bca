"""Techniques of one GPU, each beside the same on the CPU, whose kernels are the same: often bit by
bit."""

from functools import partial
from itertools import islice

import pytest
import torch
from plainly import CLOSE, assert_close, batch, model, sgd, train, trained
from pretended.step import Step, watched

from coursekit.topics.activation_checkpointing.runs import WAYS
from coursekit.topics.mixed_precision.float8 import Float8Product, Float8Recipe
from coursekit.topics.where_the_memory_goes.cuda_account import UNEXPLAINED, CudaAccount
from ranklab.measure.ledger import Ledger
from shardlab.data_loading.core import TokenLoader, prefetched
from shardlab.gpt import next_token_loss
from shardlab.kernels.losses import chunked_cross_entropy, cut_cross_entropy
from shardlab.mixed_precision.hardened.loss_scaler import LossScaler
from shardlab.mixed_precision.hardened.master_weights import MasterWeights
from shardlab.mixed_precision.policies import POLICIES
from shardlab.mixed_precision.stochastic_rounding import StochasticRounding
from shardlab.recompute import checkpoint, core
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import checkpoint_selective

# fp16 and bf16 keep 11 and 8 bits; a weight here is at most 2, and moves by less than 0.5
WITHIN = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TF32_WITHIN = WITHIN[torch.float16]  # a product's factors keep as many bits


# --- recomputation --------------------------------------------------------------------------------


def recomputed(name: str) -> Step:
    net, tokens = model(), batch()
    called = WAYS[name].wrap(net, **WAYS[name].options)
    step = train(lambda: next_token_loss(called(tokens), tokens).backward(), sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained())
    return step


def activations_on_the_host() -> Step:
    net, tokens = model(), batch()

    def backward():
        with offload_activations(least_bytes=0):
            loss = next_token_loss(net(tokens), tokens)
        loss.backward()

    step = train(backward, sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained())
    return step


DROPPING = {
    "hooks": checkpoint,
    "selective": checkpoint_selective,
    "core, hooks": core.checkpoint,
    "core, function": core.checkpoint_by_function,
}


def recomputed_with_dropout(name: str) -> Step:
    """A second run that draws the first one's numbers gives the same gradients, bit by bit. On a
    GPU the numbers are those of the device's own generator."""
    gradients = []
    for way in (None, DROPPING[name]):
        net, tokens = model(dropout=0.3), batch()
        if way:
            net.blocks = checkpoint_every(net.blocks, 1, way)
        torch.manual_seed(3)
        torch.rand(5)  # the CPU's generator is elsewhere than the device's
        with watched() as step:
            next_token_loss(net(tokens), tokens).backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(map(torch.equal, *gradients))
    return step


# --- losses without logits ------------------------------------------------------------------------

LOSSES = {
    "chunked": partial(chunked_cross_entropy, chunk=5),
    "cut": partial(cut_cross_entropy, chunk=5, words=7),
}


def without_logits(name: str) -> Step:
    """The head's product is in the loss."""
    net, tokens = model(), batch()
    net.head.forward = net.head.norm.forward
    loss = lambda: LOSSES[name](net(tokens), net.head.scores.weight, tokens)
    step = train(lambda: loss().backward(), sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained())
    return step


# --- precision ------------------------------------------------------------------------------------


def policy_of(name: str, kind: str) -> Step:
    """Under a policy, by our classes or by torch.amp. Compared with fp32."""
    policy = POLICIES[name]
    net, tokens = model(dtype=torch.float32), batch()
    forward = partial(policy.forward, "cuda")
    settings = dict(lr=0.1, momentum=0.9)
    if kind == "torch.amp":
        optimizer = torch.optim.SGD(net.parameters(), **settings)
        scaler = torch.amp.GradScaler("cuda", enabled=policy.needs_scale)
    else:
        policy.prepare(net)
        if policy.weights is torch.float32:
            optimizer = torch.optim.SGD(net.parameters(), **settings)
        else:
            optimizer = MasterWeights(net.parameters(), torch.optim.SGD, **settings)
        scaler = LossScaler() if policy.needs_scale else policy.scaler()

    def backward():
        with forward():
            loss = next_token_loss(net(tokens).float(), tokens)
        scaler.scale(loss).backward()

    with policy.step():
        step = train(backward, optimizer, scaler=scaler)
    within = TF32_WITHIN if policy.tf32 else WITHIN[policy.computes_in]
    assert_close(dict(net.named_parameters()), trained(dtype=torch.float32), within)
    return step


ONE_ATTENTION = dict(fused_attention=False)  # the CPU's fused kernel rounds otherwise


def on_both(training, within: float) -> Step:
    """training(device) -> (Step, parameters): the same on the CPU and on the device. Both compute
    with the CPU's kernels; what differs is in which order products are made."""
    _, on_cpu = training("cpu")
    step, on_gpu = training("cuda")
    for mine, plain in zip(on_gpu, on_cpu):
        assert mine.device.type == "cuda"
        error = (mine.cpu() - plain).abs().max().item()
        assert error <= within, error
    return step


def in_8_bits(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    y = Float8Product.apply(x, layer.weight, Float8Recipe())
    return y if layer.bias is None else y + layer.bias


def float8() -> Step:
    def training(device):
        net, tokens = model(device=device, dtype=torch.float32, **ONE_ATTENTION), batch(device)
        for layer in net.blocks.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.forward = partial(in_8_bits, layer)
        step = train(lambda: next_token_loss(net(tokens), tokens).backward(), sgd(net.parameters()))
        pairs = zip(net.parameters(), trained(dtype=torch.float32, **ONE_ATTENTION).parameters())
        rounded = max((mine.cpu() - plain).abs().max().item() for mine, plain in pairs)
        assert 1e-4 < rounded < 3e-2, rounded
        return step, net.parameters()

    return on_both(training, within=1e-6)


def stochastic_rounding() -> Step:
    """The random numbers of the device and of the CPU are the same from the same seed."""
    spacing = 2**-7  # of bf16 below 2: a weight may be rounded the other way in each step

    def training(device):
        net, tokens = model(device=device, dtype=torch.bfloat16, **ONE_ATTENTION), batch(device)
        optimizer = StochasticRounding(net.parameters(), torch.optim.SGD, lr=0.1)
        torch.manual_seed(2)
        step = train(lambda: next_token_loss(net(tokens).float(), tokens).backward(), optimizer)
        return step, net.parameters()

    return on_both(training, within=2 * spacing)


# --- batches --------------------------------------------------------------------------------------


def prefetched_batches() -> Step:
    """Batches that a thread has copied: from memory that is pinned and has no gaps, on a stream of
    their own. Before a batch is handed over, the stream that computes waits for its copy, and its
    memory is marked as in use there."""
    loader = TokenLoader(RandomTokens(), sequence=4, global_batch=6)
    ends, waited, marked, sources, to = [], [], [], [], torch.Tensor.to
    computes, wait_event = torch.cuda.current_stream(), torch.cuda.Stream.wait_event

    def records(stream, event=None):
        assert stream != computes
        ends.append(record_event(stream, event))
        return ends[-1]

    def copies(part, *args, **named):
        sources.append((part.is_pinned() and part.is_contiguous(), torch.cuda.current_stream()))
        return to(part, *args, **named)

    record_event = torch.cuda.Stream.record_event
    with pytest.MonkeyPatch.context() as patch, watched() as step:
        patch.setattr(torch.Tensor, "record_stream", lambda *both: marked.append(both))
        patch.setattr(torch.Tensor, "to", copies)
        patch.setattr(torch.cuda.Stream, "record_event", records)
        patch.setattr(
            torch.cuda.Stream,
            "wait_event",
            lambda stream, event: (waited.append((stream, event)), wait_event(stream, event)),
        )
        found = list(islice(prefetched(loader.batches(2), "cuda"), 3))
    for number, parts in enumerate(found):
        assert waited[number] == (computes, ends[number])
        for part, wanted in zip(parts, loader.batch(2 + number), strict=True):
            assert part.device == torch.device("cuda", torch.cuda.current_device())
            assert torch.equal(part.cpu(), wanted)
            assert any(part is mine and stream == computes for mine, stream in marked)
    assert len(sources) >= 6 and all(good and on != computes for good, on in sources)
    return step


class RandomTokens:
    """Instead of a file."""

    path = "nowhere"

    def __len__(self):
        return 101

    def windows(self, starts, length):
        return (starts[:, None] + torch.arange(length).numpy()) * 7 % 19


# --- bytes ----------------------------------------------------------------------------------------


def ledger_and_account():
    """The ledger's bytes and the allocator's, named one by one, add up to what the driver says."""
    net, tokens = model(dtype=torch.float32), batch()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step():
        next_token_loss(net(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with Ledger(net, optimizer, device="cuda") as ledger, CudaAccount(ledger) as account:
        step()
    rows = dict(account.rows())
    assert rows["the ledger's bytes"] == ledger.peak.bytes.total > 0
    assert rows[UNEXPLAINED] == 0, rows


def double_precision_is_close():
    """A GPU with the CPU's kernels gives the CPU's bits."""
    net, tokens = model(), batch()
    train(lambda: next_token_loss(net(tokens), tokens).backward(), sgd(net.parameters()))
    assert_close(dict(net.named_parameters()), trained(), CLOSE / 1e4)
