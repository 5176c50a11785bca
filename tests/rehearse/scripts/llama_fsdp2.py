"""Llama 3.1 8B under fully_shard, of the form in which torchtitan@9dec370 trained it, eager: two
sequences of 8,192 tokens a rank; norms and rotations in fp32, of several kernels each; keys and
values repeated for each head; of a layer all but attention and every second product recomputed;
the loss in fp32; clipping; AdamW on lists of tensors.

python llama_fsdp2.py [LAYERS [SEQUENCE]]
"""

import os
import sys
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

LAYERS = int(sys.argv[1]) if sys.argv[1:] else 32
BATCH, SEQUENCE = 2, int(sys.argv[2]) if sys.argv[2:] else 8192
WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 4096, 32, 8, 14336, 128256
aten = torch.ops.aten


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * (
            self.weight
        )


def rotated(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None]).flatten(3).type_as(x)


def for_each_head(x):
    return x[:, :, :, None].expand(-1, -1, -1, HEADS // KEY_HEADS, -1).flatten(2, 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.norms = nn.ModuleList([Norm(), Norm()])
        self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = (linear(WIDTH, WIDTH // HEADS * KEY_HEADS) for _ in range(2))
        self.gate, self.up = linear(WIDTH, INNER), linear(WIDTH, INNER)
        self.down = linear(INNER, WIDTH)

    def attend(self, x, angles):
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)) for part in (self.q, self.k, self.v))
        q, k = rotated(q, angles), rotated(k, angles)
        q, k, v = (one.transpose(1, 2) for one in (q, for_each_head(k), for_each_head(v)))
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).contiguous().flatten(2))

    def forward(self, x, angles):
        settings = dict(use_reentrant=False, preserve_rng_state=False, context_fn=kept_or_not)
        return checkpoint(self.compute, x, angles, **settings)

    def compute(self, x, angles):
        x = x + self.attend(self.norms[0](x), angles)
        inner = self.norms[1](x)
        return x + self.down(silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("angles", torch.zeros(SEQUENCE, WIDTH // HEADS // 2).cfloat())

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.head(self.norm(x))


def kept_or_not():
    """The policy of one call of a layer: attention is kept, and every second product."""
    products = {False: 0, True: 0}

    def policy(context, function, *args, **named):
        kept = function.name().startswith("aten::_scaled_dot_product")
        if function is aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
with torch.device("meta"):
    model = Llama()
halves = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
for index, layer in enumerate(model.layers):
    fully_shard(layer, reshard_after_forward=index < LAYERS - 1, **halves)
fully_shard(model, **halves)
model.to_empty(device="cuda")
with torch.no_grad():
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, foreach=True)
for _ in range(10):
    batch = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1))
    tokens, targets = batch[:, :-1].to("cuda"), batch[:, 1:].to("cuda")
    optimizer.zero_grad()
    scores = model(tokens)
    loss = cross_entropy(scores.flatten(0, 1).float(), targets.flatten())
    del scores
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
