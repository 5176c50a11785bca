"""Chapter 3: where does the memory go?"""

import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from coursekit.exercises.checker import Exercise, Misconception
from coursekit.formulas import RECIPES
from coursekit.formulas import layer_activation_bytes as formula
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.ledger import Ledger

# --- what autograd keeps --------------------------------------------------------------------------


class _FirstHalf(nn.Module):
    """A linear layer that reads half of its input: what it keeps is a view of the whole."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x):
        return self.linear(x[:, :2])


class _BothHalves(_FirstHalf):
    """It reads both halves: two views are kept of one storage."""

    def forward(self, x):
        return self.linear(x[:, :2]) + self.linear(x[:, 2:])


def _packed(module, x):
    """Every tensor that autograd keeps for backward of module(x), as often as it keeps it."""
    kept = []

    def pack(tensor):
        kept.append(tensor.detach())  # itself, it would hold the operation that saved it
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(x)
    return kept, result  # the result, because the memory of what it holds would be given away again


def _places(tensors):
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }


def _saved(module, x):
    kept, result = _packed(module, x)
    weights = _places(module.parameters())
    return sum(nbytes for place, nbytes in _places(kept).items() if place not in weights)


def _without_weights(module, x):
    kept, result = _packed(module, x)
    weights = _places(module.parameters())
    return [tensor for tensor in kept if tensor.untyped_storage().data_ptr() not in weights]


def _at_addresses(module, x):
    return sum(
        {t.data_ptr(): t.untyped_storage().nbytes() for t in _without_weights(module, x)}.values()
    )


def _without(module, x):
    own = x.untyped_storage().data_ptr()
    kept = [t for t in _without_weights(module, x) if t.untyped_storage().data_ptr() != own]
    return sum(_places(kept).values())


def _less_all_parameters(module, x):
    everything = sum(_places(_packed(module, x)[0]).values())
    return everything - sum(p.nbytes for p in module.parameters())


def _outputs(module, x):
    return x.nbytes + sum(y.nbytes for y in _each_output(module, x))


def _each_output(module, x):
    for layer in module if isinstance(module, nn.Sequential) else [module]:
        x = layer(x)
        yield x


class TensorsNoted(NamedTuple):
    """The notes of a reader's hook."""

    tensors: int
    elements: int
    tensors_that_hold_their_graph: int
    results_that_are_never_freed: int
    x_itself_is_among_them: bool
    backward_gets_tensors: bool


def _noted(solution, module, x):
    results = []
    for layer in module:
        layer.register_forward_hook(lambda *given: results.append(weakref.ref(given[2])))
    kept = solution(module, x)
    if kept is None or kept is ...:
        return kept
    if isinstance(kept, torch.Tensor) or not hasattr(kept, "__iter__"):
        kept = [None]
    kept = list(kept)
    if not all(isinstance(tensor, torch.Tensor) for tensor in kept):
        raise TypeError(
            "it returned something other than a list of tensors: return the list of what you noted."
        )
    count, holding = len(kept), sum(tensor.grad_fn is not None for tensor in kept)
    elements = sum(tensor.numel() for tensor in kept)
    itself = x.untyped_storage().data_ptr() in _places(kept)
    del kept
    stay = sum(result() is not None for result in results)
    return TensorsNoted(
        count, elements, holding, stay, itself, _backward_gets_tensors(solution, module, x)
    )


def _backward_gets_tensors(solution, module, x):
    """Whether unpack gives backward tensors; where backward cannot run at all, nobody asks."""
    outputs = []
    module.register_forward_hook(lambda *given: outputs.append(given[2]))
    solution(module, x)
    try:
        outputs[-1].sum().backward()
    except TypeError:
        return False
    except (RuntimeError, IndexError):  # nothing recorded, gone back before, or never run
        pass
    return True


def _packed_where(module, x, needs_gradient):
    kept = []

    def pack(tensor):
        if tensor.requires_grad is needs_gradient:
            kept.append(tensor.detach())
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return kept


def _packed_in_a_circle(module, x):
    kept = []

    def pack(tensor):
        kept.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return kept


def _packed_with_graphs(module, x):
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return kept


def _packed_as(kept_as, pack_returns):
    def kept_by(module, x):
        kept = []

        def pack(tensor):
            kept.append(kept_as(tensor))
            return pack_returns(tensor)

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            module(x)
        return kept

    return kept_by


what_autograd_keeps = Exercise(
    name="kept_by",
    reference=lambda module, x: _packed(module, x)[0],
    cases=(
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(module=nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1)), x=torch.zeros(3, 4)),
    ),
    words=("linear 5 to 7, ReLU, linear 7 to 2", "linear 4 to 6, softmax"),
    answer=_noted,
    hint="saved_tensors_hooks(pack, unpack) is entered by with. autograd calls pack with every"
    " tensor that it wants to keep, while module(x) runs.",
    errors=(
        (
            "saved_tensors_hooks|saved_tensors_default_hooks",
            "Both hooks are functions: saved_tensors_hooks(pack, lambda tensor: tensor).",
        ),
    ),
    misconceptions=(
        Misconception(
            _packed_with_graphs,
            "you note the tensor itself, and the result of an operation holds the graph that made"
            " it: what you want to count would never be freed. Note tensor.detach(), and return"
            " that.",
        ),
        Misconception(
            lambda module, x: [],
            "nothing was noted. pack is called in forward, so module(x) must run inside the with,"
            " and not under torch.no_grad(); unpack is called in backward, which nobody runs here.",
        ),
        Misconception(
            lambda module, x: [y.detach() for y in _each_output(module, x)],
            "those are the outputs of the layers. Autograd keeps what backward needs: inputs,"
            " weights, and an output only where it is of use. Let pack note what it is given.",
        ),
        Misconception(
            lambda module, x: [
                tensor
                for tensor in _packed(module, x)[0]
                if tensor.untyped_storage().data_ptr() not in _places(module.parameters())
            ],
            "the weights are left out already: that is the next step. Here note every tensor that"
            " pack is given.",
        ),
        Misconception(
            _packed_in_a_circle,
            "you note the right tensors. But what pack returns is what is kept: the result of"
            " softmax, itself, holds the graph that keeps it, so its memory never comes back."
            " Return tensor.detach(), too.",
        ),
        Misconception(
            lambda module, x: list(
                {t.untyped_storage().data_ptr(): t for t in _packed(module, x)[0]}.values()
            ),
            "each storage once: that is the next step. Here note every tensor that pack is given.",
        ),
        Misconception(
            lambda module, x: _packed_where(module, x, True),
            "whether a tensor needs a gradient or not says nothing about what backward needs:"
            " note every tensor that pack is given.",
        ),
        Misconception(
            lambda module, x: _packed_where(module, x, False),
            "whether a tensor needs a gradient or not says nothing about what backward needs:"
            " note every tensor that pack is given, activations among them.",
        ),
        Misconception(
            _packed_as(lambda tensor: tensor.detach(), lambda tensor: None),
            "you note the right tensors. But what pack returns is what is kept, and unpack makes no"
            " tensor of it for a backward: return tensor.detach(), too.",
        ),
        Misconception(
            _packed_as(lambda tensor: tensor.detach().clone(), lambda tensor: tensor.detach()),
            "those are copies: clone() takes memory of its own, and the next step asks whose memory"
            " is kept. Note tensor.detach(), which looks at the same storage.",
        ),
        Misconception(
            lambda module, x: _packed(module, x)[0] + _packed(module, x)[0],
            "the module runs twice, so everything is noted twice.",
        ),
    ),
    right="every tensor that autograd hands over in forward, each without its graph.",
)


saved_bytes_of_a_module = Exercise(
    name="saved_bytes",
    reference=_saved,
    cases=(
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(module=_FirstHalf(), x=torch.zeros(3, 5)),
        dict(module=_BothHalves(), x=torch.zeros(3, 4)),
    ),
    words=(
        "linear 5 to 7, GELU, linear 7 to 2",
        "linear 5 to 7, ReLU, linear 7 to 2",
        "a linear layer on x[:, :2], x is 3 by 5",
        "a linear layer on x[:, :2] and on x[:, 2:], x is 3 by 4",
    ),
    hint="A dictionary, address of a storage -> its bytes, counts each storage once:"
    " tensor.untyped_storage() has .data_ptr() and .nbytes(). Which addresses are those of"
    " parameters?",
    misconceptions=(
        Misconception(
            lambda module, x: sum(_places(_packed(module, x)[0]).values()),
            "autograd keeps weights too, to find the gradient of a layer's input; but those are"
            " the parameters, which lie in memory anyway. Leave their storages out. A hook gets"
            " plain tensors: neither requires_grad nor the class identifies a weight, but its"
            " address does.",
        ),
        Misconception(
            lambda module, x: sum(
                tensor.untyped_storage().nbytes() for tensor in _without_weights(module, x)
            ),
            "you count a storage twice. ReLU keeps its result, and the next layer keeps the same"
            " tensor as its input: two tensors, one storage.",
        ),
        Misconception(
            lambda module, x: sum(
                {
                    tensor.untyped_storage().data_ptr(): tensor.nbytes
                    for tensor in _without_weights(module, x)
                }.values()
            ),
            "a slice is kept, and with it the whole storage it looks at: count"
            " untyped_storage().nbytes(), not .nbytes.",
        ),
        Misconception(
            lambda module, x: sum(
                {
                    tensor.untyped_storage().data_ptr(): tensor.nbytes
                    for tensor in _packed(module, x)[0]
                }.values()
            ),
            "two things: weights are kept too, but they are the parameters, which lie in memory"
            " anyway; and a slice keeps the whole storage it looks at, so count"
            " untyped_storage().nbytes(), not .nbytes.",
        ),
        Misconception(
            lambda module, x: sum(tensor.nbytes for tensor in _packed(module, x)[0]),
            "that is everything that was handed over for keeping: with the weights, and some memory"
            " twice. Count each storage once, and the parameters' not at all.",
        ),
        Misconception(
            lambda module, x: _saved(module, x) // 4,
            "those are elements; each of them takes 4 bytes in fp32.",
        ),
        Misconception(
            _outputs,
            "those are the input and every output. Autograd keeps what backward needs, no more:"
            " nobody needs the last result, and of ReLU the result alone is enough.",
        ),
        Misconception(
            lambda module, x: sum(t.untyped_storage().nbytes() for t in _packed(module, x)[0]),
            "that is everything that was handed over, each tensor with its storage. Count each"
            " storage once, and the parameters' not at all.",
        ),
        Misconception(
            _without,
            "x is kept, too: a linear layer needs its input for the gradient of its weight.",
        ),
        Misconception(
            _at_addresses,
            "a slice begins elsewhere than its storage, so two slices of one storage count"
            " twice: take the address of the storage, tensor.untyped_storage().data_ptr().",
        ),
        Misconception(
            lambda module, x: sum(_places(_packed(module, x)[0]).values()) - _saved(module, x),
            "those are the weights; the others are wanted, the activations.",
        ),
        Misconception(
            _less_all_parameters,
            "you subtract all parameters, and not all of them are kept: biases are not, nor a"
            " weight whose layer needs no gradient of its input. Leave out what is kept and is a"
            " parameter.",
        ),
        Misconception(
            lambda module, x: max(_places(_without_weights(module, x)).values()),
            "that is the largest storage; the others take memory, too.",
        ),
        Misconception(
            lambda module, x: len(_places(_without_weights(module, x))),
            "that is how many storages there are; add up their bytes.",
        ),
    ),
    errors=(
        (
            "must match the size of tensor|Boolean value of Tensor",
            "`in` and == compare the numbers in two tensors. The addresses of their storages"
            " tell whether two tensors share memory: collect the parameters' addresses in a set.",
        ),
    ),
    unit="bytes",
    right="each storage once, as large as it is, and the parameters not at all.",
)


# --- one layer, and the loss ----------------------------------------------------------------------


def _vectors(count, small=1):
    return lambda b, s, h, a: 4 * (count * s * b * h + small * (a * b * s + 4 * b * s))


def _layer(b, s, h, a):
    return formula(
        microbatch=b,
        sequence=s,
        hidden=h,
        heads=a,
        key_value_heads=a,
        feed_forward=4 * h,
        learned_positions=1,
        biases=1,
        gated_mlp=0,
        dropout=0,
        fused_attention=1,
        **RECIPES["fp32 Adam"].quantities,
    )


layer_bytes_of_gpt2 = Exercise(
    name="layer_bytes",
    reference=_layer,
    cases=(
        dict(b=1, s=1, h=1, a=1),
        dict(b=2, s=256, h=256, a=4),
        dict(b=3, s=7, h=24, a=6),
        dict(b=1, s=2048, h=4096, a=32),
    ),
    hint="Count vectors of h for a token: what enters each norm, each linear layer and attention,"
    " and the inner ones, of 4 h, before and after GELU. None of them counts twice.",
    misconceptions=(
        Misconception(
            lambda b, s, h, a: s * b * h * 34 + 5 * a * s * s * b,
            "that is the famous sbh(34 + 5as/h): 16-bit tensors, dropout, and attention that stores"
            " its scores. Here everything is fp32, nothing is dropped, and fused attention stores"
            " no scores.",
        ),
        Misconception(
            lambda b, s, h, a: 2 * (s * b * h * 34 + 5 * a * s * s * b),
            "twice sbh(34 + 5as/h) still holds dropout masks and attention scores, and this layer"
            " keeps neither.",
        ),
        Misconception(
            lambda b, s, h, a: 64 * s * b * h,
            "the sixteen vectors are right. Fused attention also keeps one number for each head and"
            " token, and LayerNorm two for each token.",
        ),
        Misconception(
            lambda b, s, h, a: 64 * s * b * h + 4 * a * b * s,
            "LayerNorm keeps the mean and the deviation of each token, and a layer has two norms.",
        ),
        Misconception(
            lambda b, s, h, a: 64 * s * b * h + 16 * b * s,
            "fused attention keeps the log-sum-exp of its scores: one fp32 number for each head and"
            " token.",
        ),
        Misconception(
            lambda b, s, h, a: 64 * s * b * h + 4 * a * b * s + 8 * b * s,
            "that is one norm; a layer has two, and each keeps two numbers for each token.",
        ),
        Misconception(
            lambda b, s, h, a: 48 * s * b * h + 4 * a * b * s + 16 * b * s,
            "the MLP keeps its inner vectors twice: before GELU, for GELU's gradient, and after it,"
            " for the next weight's. That is 8h, not 4h.",
        ),
        Misconception(
            lambda b, s, h, a: 32 * s * b * h + 2 * a * b * s + 8 * b * s,
            "each element takes 4 bytes in fp32; you counted 2.",
        ),
        Misconception(
            lambda b, s, h, a: 32 * s * b * h + 4 * a * b * s + 16 * b * s,
            "the vectors take 4 bytes an element in fp32; you counted 2.",
        ),
        Misconception(
            lambda b, s, h, a: 16 * s * b * h + a * b * s + 4 * b * s,
            "those are elements; each of them takes 4 bytes.",
        ),
        *(
            Misconception(
                _vectors(count, small),
                f"{count} vectors of h for each token, and there are 16: 2 into the norms, 2 into"
                " the linear layers after them, 3 for queries, keys and values, 1 out of attention,"
                " and twice 4h in the MLP."
                + " Fused attention and the norms keep a few numbers besides."
                * (not small),
            )
            for count in (8, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21, 22, 24)
            for small in (1, 0)
            if (count, small) != (8, 1)  # as many bytes as 16 vectors of 2 bytes an element
        ),
        Misconception(
            lambda b, s, h, a: 64 * s * b * h + 4 * a * b * s * s + 16 * b * s,
            "fused attention stores no scores, which would be s x s for each head: it keeps one"
            " number for each head and token.",
        ),
        Misconception(
            lambda b, s, h, a: _layer(1, s, h, a), "that is one sequence; the batch has b of them."
        ),
        Misconception(
            lambda b, s, h, a: 48 * h * h,
            "those are the weights of a layer, 12 h^2 of them. Activations grow with the tokens.",
        ),
    ),
    unit="bytes",
    right=(
        "for each token sixteen vectors of h, one number for each head, and two numbers for each of"
        " the two norms; 4 bytes for each number."
    ),
)

loss_bytes_at_the_peak = Exercise(
    name="loss_bytes",
    reference=lambda b, s, vocabulary: 12 * b * s * vocabulary,
    cases=(
        dict(b=1, s=1, vocabulary=1),
        dict(b=2, s=256, vocabulary=50_257),
        dict(b=3, s=5, vocabulary=70),
    ),
    hint="One tensor is kept by forward. Backward makes two more of the same size.",
    misconceptions=(
        Misconception(
            lambda b, s, vocabulary: 4 * b * s * vocabulary,
            "that is the log-softmax, which forward keeps. Backward makes two more of its size: the"
            " gradient of the log-softmax, and from it the gradient of the logits.",
        ),
        Misconception(
            lambda b, s, vocabulary: 8 * b * s * vocabulary,
            "there are three at once: the kept log-softmax, its gradient, and the gradient of the"
            " logits that is being made.",
        ),
        Misconception(
            lambda b, s, vocabulary: 16 * b * s * vocabulary,
            "the logits themselves are gone: nobody kept a name for them, and the loss keeps their"
            " log-softmax instead.",
        ),
        Misconception(
            lambda b, s, vocabulary: 6 * b * s * vocabulary,
            "that is what 16-bit logits and their fp32 copy take; here the logits are fp32, and"
            " backward needs three.",
        ),
        Misconception(
            lambda b, s, vocabulary: 3 * b * s * vocabulary,
            "those are elements; each of them takes 4 bytes in fp32.",
        ),
        Misconception(
            lambda b, s, vocabulary: 12 * s * vocabulary,
            "that is one sequence; the batch has b of them.",
        ),
        Misconception(
            lambda b, s, vocabulary: 12 * b * vocabulary,
            "that is one token of each sequence: the loss has scores for all s of them.",
        ),
        Misconception(
            lambda b, s, vocabulary: 12 * b * s,
            "each token has a score for every token of the vocabulary, not just one.",
        ),
        Misconception(
            lambda b, s, vocabulary: 12 * b * s * vocabulary + 8 * b * s,
            "the targets are there, and were there before: they belong to the batch, not to the"
            " loss.",
        ),
    ),
    unit="bytes",
    right=(
        "three tensors of b x s x vocabulary numbers: the kept log-softmax, its gradient, and the"
        " gradient of the logits."
    ),
)


# --- bug hunt: memory that grows ------------------------------------------------------------------


class Left(NamedTuple):
    """The bytes that a training loop left behind, and the most it held, as the ledger counted."""

    losses: int
    bytes_left: int  # beyond parameters and optimizer states
    peak_kib: int  # whole KiB: the 4 bytes of a loss that has a name do no harm
    in_training_mode: bool


CONFIG = GPTConfig(layers=2, hidden=16, heads=2, vocabulary=31, max_sequence=8)
TRAIN, HELD_OUT = 2, 16  # windows: without gradients there is room for more, people think


def pairs(steps):
    """(training batch, held-out batch) for each step, each of tokens and targets."""
    for step in range(steps):
        yield tuple(
            (torch.full((n, 8), step), torch.full((n, 8), step + 1)) for n in (TRAIN, HELD_OUT)
        )


def watch_loop(train, steps) -> Left:
    """Run a loop train(model, optimizer, pairs) that returns its held-out losses, with a ledger
    watching."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with Ledger(model, optimizer) as ledger:
        losses = train(model, optimizer, pairs(steps))
        if not isinstance(losses, list):
            raise TypeError(
                f"it returned {losses!r}; it is to return a list with one loss for each step."
            )
        left = ledger.bytes.total - ledger.bytes.parameters - ledger.bytes.optimizer
    return Left(len(losses), left, ledger.peak.bytes.total // 1024, model.training)


def _train(validate):
    def train(model, optimizer, pairs):
        losses = []
        for batch, held_out in pairs:
            next_token_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses += validate(model, *held_out)
        return losses

    return train


def _clean(model, tokens, targets):
    with torch.no_grad():
        return [next_token_loss(model(tokens), targets).item()]


def _leaky(model, tokens, targets):
    return [next_token_loss(model(tokens), targets)]


def _eval_mode(model, tokens, targets):
    model.eval()
    return _leaky(model, tokens, targets)


def _never_back(model, tokens, targets):
    model.eval()
    return _clean(model, tokens, targets)


def _by_name(keep, recorded=True):
    """A loop whose held-out loss has a name, which keeps it until the next one."""

    def train(model, optimizer, pairs):
        losses = []
        for batch, held_out in pairs:
            next_token_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.set_grad_enabled(recorded):
                loss = next_token_loss(model(held_out[0]), held_out[1])
            losses += keep(loss, optimizer)
        return losses

    return train


def _without_clearing(model, optimizer, pairs):
    losses = []
    for batch, held_out in pairs:
        next_token_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        losses += _clean(model, *held_out)
    return losses


def _late_clearing(recorded):
    def train(model, optimizer, pairs):
        losses = []
        for batch, held_out in pairs:
            next_token_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            with torch.set_grad_enabled(recorded):
                loss = next_token_loss(model(held_out[0]), held_out[1])
            losses.append(loss.item())
            optimizer.zero_grad()
        return losses

    return train


def _back(loss, optimizer):
    loss.backward()
    return [loss.item()]


def _tensors(model, tokens, targets):
    with torch.no_grad():
        return _leaky(model, tokens, targets)


memory_that_grows = Exercise(
    name="train",
    reference=_train(_clean),
    cases=(dict(steps=1), dict(steps=3)),
    words=("1 step", "3 steps"),
    answer=watch_loop,
    hint="What does a loss hold besides its number, and for which backward?",
    misconceptions=(
        Misconception(
            _train(_leaky),
            "after each step more is left than before, and it is neither parameters nor optimizer"
            ' states. ledger.by_module("activations") says who made it; then ask who'
            " still holds it.",
        ),
        Misconception(
            _train(_eval_mode),
            "eval() changes what dropout and batch norm do, and nothing else: autograd records as"
            " before. And nobody switched the model back.",
        ),
        Misconception(
            _train(_never_back),
            "nothing is left behind any more, but the model stays in eval mode: from the second"
            " step on it trains without dropout. Call train() again, or leave eval() out.",
        ),
        Misconception(
            _train(lambda model, *held_out: [loss.item() for loss in _leaky(model, *held_out)]),
            "nothing is left behind any more. But the held-out forward still keeps every activation"
            " for a backward that never comes, and that decides the peak: tell autograd not to"
            " record.",
        ),
        Misconception(
            _train(lambda model, *held_out: [loss.detach() for loss in _leaky(model, *held_out)]),
            "detach() lets go of the graph, so the activations are freed. But the held-out forward"
            " still keeps every activation for a backward that never comes, and that decides the"
            " peak; and what is left is a tensor for each loss. Tell autograd not to record, and"
            " keep a number.",
        ),
        Misconception(
            _train(_tensors),
            "the activations are gone. What is left is a tensor for each loss, 4 bytes here and 512"
            " on a GPU, where the allocator rounds up: keep a number.",
        ),
        Misconception(
            _train(lambda *_: []),
            "that measures no held-out loss any more; the loop is to return one for each step.",
        ),
        Misconception(
            _by_name(lambda loss, _: [loss.item()]),
            "nothing is left behind any more. But the held-out forward still keeps every"
            " activation for a backward that never comes, and that decides the peak; the name of"
            " the loss holds them even until the next one. Tell autograd not to record.",
        ),
        Misconception(
            _by_name(lambda loss, _: [loss.detach()]),
            "detach() lets go of the graph, so the activations are freed, if late: the name of"
            " the loss still has it. The held-out forward keeps every activation for a backward"
            " that never comes. Tell autograd not to record, and keep a number.",
        ),
        Misconception(
            _by_name(lambda loss, _: [], recorded=False),
            "that measures no held-out loss any more; the loop is to return one for each step.",
        ),
        Misconception(
            _by_name(_back),
            "backward() frees the graph, and it trains on the held-out text: its gradients are"
            " there, and the next update takes them. Tell autograd not to record.",
        ),
        Misconception(
            _late_clearing(False),
            "no graph is recorded, but the gradients are still there while the held-out text is"
            " read, and they add to the peak: clear them right after the step.",
        ),
        Misconception(
            _late_clearing(True),
            "nothing is left behind any more. But the gradients are still there while the"
            " held-out text is read, and its forward still keeps every activation, which decides"
            " the peak. Tell autograd not to record.",
        ),
        Misconception(
            _without_clearing,
            "the gradients are never cleared: each backward adds to those of the steps before."
            " optimizer.zero_grad() stays where it was.",
        ),
        Misconception(
            lambda model, optimizer, pairs: _train(_clean)(model, optimizer, pairs)[-1:],
            "the list begins anew in every step, so one loss is left: it is to hold one for each"
            " step.",
        ),
    ),
    right="no graph where no backward comes, and a number kept instead of a tensor.",
)


# --- a step weighed alone -------------------------------------------------------------------------


def _to_ten_megabytes(found):
    """On a GPU its kernels decide what they keep, some kilobytes more or less."""
    return round(found() / 10**7)


peak_with_momentum = Exercise(
    name="the peak",
    reference=lambda: 472_186_888,
    cases=({},),
    answer=_to_ten_megabytes,
    of_a_value=True,
    hint="Make the model, then the optimizer of its parameters; weigh_step takes both. Which"
    " tensors does the first step make?",
    misconceptions=(
        Misconception(lambda: 536_550_616, "that is Adam, with two moments; SGD has one momentum."),
        Misconception(
            lambda: 407_823_368,
            "no momentum is there: it is made in the first step, so weigh the second, with"
            " momentum=0.9.",
        ),
        Misconception(
            lambda: 128_727_040,
            "that is what is left after the step: ask the ledger for its peak.",
        ),
        Misconception(
            lambda: 343_459_640,
            "parameters or momentum are missing: give the ledger the model and the optimizer.",
        ),
    ),
    errors=(
        (
            "unsupported operand",
            "A number is wanted: ledger.peak.bytes.total.",
        ),
    ),
    right="parameters, one momentum for each, activations and the loss: 64 million bytes fewer than"
    " with Adam.",
)
