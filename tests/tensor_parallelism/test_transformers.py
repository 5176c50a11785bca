"""Models of the package transformers, as they are: cut by a plan of 12 to 16 lines, sharded,
recomputed. They are made of their configurations, so nothing is downloaded.

Their norms and losses compute in fp32, hence 1e-5: a rank that goes astray is 1e-3 off."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from night import at_night
from torch import nn
from torch.nn import functional as F

from shardlab import zero
from shardlab.recompute import checkpoint
from shardlab.recompute.layers import checkpoint_every, checkpoint_modules
from shardlab.tensor_parallel import apply_tensor_parallel, overlapped
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows, Tokens, Whole
from shardlab.zero.hardened.full_parameters import unsharded

FAMILY = dict(  # of Llama's children
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=16,
)
GPT2 = dict(n_embd=16, n_head=4, n_layer=2, n_positions=16, n_inner=24, activation_function="relu")
MODELS = ("Llama", "Qwen2", "Qwen3", "Gemma", "GPT2")
STEPS, CLOSE = 3, 1e-5


class Logits(nn.Module):
    """The model, as a function of tokens."""

    def __init__(self, kind):
        super().__init__()
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            **(GPT2 if kind == "GPT2" else FAMILY),
            vocab_size=40,
            use_cache=False,
            tie_word_embeddings=kind in ("Gemma", "GPT2"),
            attn_implementation="eager",
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
        )
        torch.manual_seed(3)
        head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
        self.net = getattr(transformers, kind + head)(config).double().eval()
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.normal_(std=0.3)

    def forward(self, tokens):
        return self.net(input_ids=tokens).logits


def plan_of(kind):
    """Tokens of a tied head are whole."""
    if kind == "GPT2":
        return plan_of_gpt2()
    layer, tied = "net.model.layers.*", kind == "Gemma"
    plan = {
        "net.model.embed_tokens": Whole() if tied else Tokens(),
        f"{layer}.input_layernorm": Whole(),
        f"{layer}.self_attn": Around(),
        **{f"{layer}.self_attn.{key}_proj": Columns(2, "key_value_heads") for key in "qkv"},
        f"{layer}.self_attn.o_proj": Rows(2, "key_value_heads"),
        f"{layer}.post_attention_layernorm": Whole(),
        f"{layer}.mlp": Around(),
        f"{layer}.mlp.gate_proj": Columns(24),
        f"{layer}.mlp.up_proj": Columns(24),
        f"{layer}.mlp.down_proj": Rows(24),
        "net.model.norm": Whole(),
        "net.lm_head": Whole(),
    }
    if kind == "Qwen3":
        plan |= {f"{layer}.self_attn.{key}_norm": Whole() for key in "qk"}
    return plan


def plan_of_gpt2():
    """Its attention stays whole: its Conv1D has queries, keys and values one after the other."""
    block = "net.transformer.h.*"
    return {
        "net.transformer.wte": Whole(),
        "net.transformer.wpe": Whole(),
        "net.transformer.drop": Whole(),
        f"{block}.ln_1": Whole(),
        f"{block}.attn.c_attn": Whole(),
        f"{block}.attn.c_proj": Whole(),
        f"{block}.attn.attn_dropout": Whole(),
        f"{block}.attn.resid_dropout": Whole(),
        f"{block}.ln_2": Whole(),
        f"{block}.mlp": Around(),
        f"{block}.mlp.c_fc": Columns(24),
        f"{block}.mlp.c_proj": Rows(24),
        f"{block}.mlp.dropout": Whole(),
        "net.transformer.ln_f": Whole(),
        "net.lm_head": Whole(),
    }


def linear(conv):
    """transformers' Conv1D as the nn.Linear that it is."""
    made = nn.Linear(*conv.weight.shape).double()
    made.weight, made.bias = nn.Parameter(conv.weight.detach().t().clone()), conv.bias
    return made


def layers_of(model):
    return model.net.transformer if hasattr(model.net, "transformer") else model.net.model


def trained(kind, way=""):
    """(losses, weights) of a training on this rank, joined where they are cut."""
    torch.set_num_threads(1)
    model, name = Logits(kind), "h" if kind == "GPT2" else "layers"
    if kind == "GPT2":
        for block in layers_of(model).h:
            block.mlp.c_fc, block.mlp.c_proj = linear(block.mlp.c_fc), linear(block.mlp.c_proj)
    if "tensor" in way:
        plan = plan_of(kind)
        apply_tensor_parallel(model, overlapped(plan, 2) if "overlapped" in way else plan)
    if "every" in way:
        setattr(layers_of(model), name, checkpoint_every(getattr(layers_of(model), name), 1))
    elif "checkpoint" in way:
        checkpoint_modules(model, type(getattr(layers_of(model), name)[0]), checkpoint)
    called, settings, n = model, dict(lr=0.01, eps=1e-3), 1
    if "stage" in way:
        n, stage = dist.get_world_size(), int(way[6])
        made = zero.shard(model, torch.optim.AdamW, stage=stage, prefetch=True, **settings)
        called, optimizer = made
    else:
        stage, optimizer = 0, torch.optim.AdamW(model.parameters(), **settings)
    losses, draw = [], torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(40, (4, 9), generator=draw)
        own = tokens.chunk(n)[dist.get_rank() if n > 1 else 0]
        loss = F.cross_entropy(called(own[:, :-1]).flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if n > 1:
        dist.all_reduce(losses)
    if stage == 3:
        with unsharded(model):
            weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    else:
        weights = whole_state_dict(model)
    return losses / n, weights


WAYS = (
    "tensor",
    "tensor, overlapped, checkpoint every",
    "tensor, checkpoint",
    "stage 1",
    "stage 2, checkpoint",
    "stage 3",
    "stage 3, checkpoint every",
)


@pytest.fixture(scope="module")
def plainly(worlds):
    """kind -> what a rank finds alone; transformers takes seconds to import."""
    return cache(lambda kind: worlds(2).run(trained, kind)[0])


# By day each model is cut in pieces and is a unit's, and one model or another goes each other way.
EACH = ("tensor, overlapped, checkpoint every", "stage 3, checkpoint every")
BY_DAY = [(kind, way) for kind in MODELS for way in EACH]
BY_DAY += [("Qwen3", "tensor"), ("GPT2", "tensor, checkpoint"), ("Qwen2", "stage 1")]
BY_DAY += [("Gemma", "stage 2, checkpoint"), ("Llama", "stage 3")]
REST = [(kind, way) for kind in MODELS for way in WAYS if (kind, way) not in BY_DAY]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind, way", BY_DAY + at_night(*REST))
def test_a_model_of_transformers(worlds, plainly, kind, way):
    """Must catch: gradients of Qwen3's norms that are of one rank's heads; attention that is called
    by names; a slice of layers, over which their loop goes, without its checkpoints."""
    losses, weights = plainly(kind)
    for found, own in worlds(2).run(trained, kind, way):
        assert (found - losses).abs().max() < CLOSE
        for name, want in weights.items():
            assert (own[name] - want).abs().max() < CLOSE, name
