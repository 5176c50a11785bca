"""Which module of a model is cut how: a table over the names of modules.

    plan = gpt_plan(config)

A `*` in a name stands for one part of it: "blocks.*.mlp" is the MLP of every block. The plan names
every module that has parameters of its own or drops elements, also those that stay whole: what is
not named has been forgotten. The model itself knows nothing of it; apply.py does what it says.

A module that stays whole and computes with parts, such as a norm of each head between Columns and
Rows, has a gradient that is a sum over ranks. Inside of Around() that is found by the ranks' first
gradients, which differ; elsewhere they are refused.

Two mistakes in a plan of your own raise nothing, because what runs between two modules is not in
it. Dropout of parts, between Columns and Rows, is Drops(dim): as Whole(), all parts get one mask.
What looks at all columns at once, such as a softmax, a norm or chunk() of a fused gate and up, is
right only behind Rows, or made for parts, as vocabulary_parallel_loss is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper

from torch import Tensor, nn

from ...common.torch_internals import tree_leaves, tree_map
from ...experts.core import Experts
from ...experts.hardened.split import SplitExperts
from ...gpt import Dropout, GPTConfig
from .layers import ColumnLinear, Cut, OwnDropout, Parts, RowLinear, TokenEmbedding
from .pairs import enter, leave

# --- what can become of a module ------------------------------------------------------------------


class Whole:
    """Stays as it is, on every rank."""

    def complaint(self, module: nn.Module, ranks: int) -> str:
        """Why the module cannot be that; empty if it can."""
        return ""

    def cuts(self, module: nn.Module) -> dict[str, Cut]:
        """The cuts of the module's own parameters."""
        return {}

    divides_tokens = False  # between modules that are cut, a rank has all tokens

    def split(self, module: nn.Module, parts: Parts) -> nn.Module:
        return module


class Around(Whole):
    """A module that takes what is whole, and in which each rank makes parts of it. Its first tensor
    argument is x; others whose gradient is wanted, also in tuples and dicts, are whole, too."""

    def split(self, module: nn.Module, parts: Parts) -> nn.Module:
        run = partial(self.forward, module, module.forward, parts.group)
        module.forward = update_wrapper(run, module.forward)
        return module

    def forward(self, module: nn.Module, compute: Callable, group, *given, **named):
        """Runs the module, whatever the names of its arguments are."""
        leaves = *given, *named.values(), *tree_leaves((given, named))
        x = next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)
        if x is None:
            return compute(*given, **named)

        def computed(entered: Tensor):
            place = lambda leaf: entered if leaf is x else self.beside(leaf, group)
            args, options = tree_map(place, (given, named))
            return compute(*args, **options)

        return self.run(module, computed, group, x)

    def beside(self, other, group):
        """An argument beside x."""
        return enter(other, group) if isinstance(other, Tensor) and other.requires_grad else other

    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        return compute(enter(x, group))


@dataclass(frozen=True)
class Columns(Whole):
    """A linear layer that is cut by columns. `pieces` cannot be cut; if they are `heads`, all ranks
    have as many."""

    pieces: int
    heads: str = ""

    def complaint(self, module: nn.Module, ranks: int) -> str:
        if not isinstance(module, nn.Linear):
            return f"a {type(module).__name__}, and only nn.Linear is cut by columns or rows."
        cut = self.cuts(module)["weight"]
        return uneven_parts(module.weight.shape[cut.dim], self.pieces, self.heads, ranks)

    def cuts(self, module: nn.Linear) -> dict[str, Cut]:
        return dict.fromkeys(("weight", "bias"), Cut(0, self.pieces))

    def split(self, module: nn.Linear, parts: Parts) -> nn.Module:
        return ColumnLinear(module, self.cuts(module), parts)


@dataclass(frozen=True)
class Rows(Columns):
    """`join` makes one of what the ranks have."""

    join: Callable[..., Tensor] = leave

    def cuts(self, module: nn.Linear) -> dict[str, Cut]:
        return dict(weight=Cut(1, self.pieces))

    def split(self, module: nn.Linear, parts: Parts) -> nn.Module:
        return RowLinear(module, self.cuts(module), parts, self.join)


@dataclass(frozen=True)
class Tokens(Whole):
    """The rows of an embedding."""

    join: Callable[..., Tensor] = leave

    def complaint(self, module: nn.Module, ranks: int) -> str:
        if not isinstance(module, nn.Embedding):
            return f"a {type(module).__name__}, and only nn.Embedding is cut by tokens."
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if value := getattr(module, option):
                return f"{option} = {value}, which looks at rows of all ranks: build it without."
        return uneven_parts(module.num_embeddings, module.num_embeddings, "", ranks)

    def cuts(self, module: nn.Embedding) -> dict[str, Cut]:
        return dict(weight=Cut(0, module.num_embeddings))

    def split(self, module: nn.Embedding, parts: Parts) -> nn.Module:
        return TokenEmbedding(module, self.cuts(module), parts, self.join)


@dataclass(frozen=True)
class Drops(Whole):
    """Dropout of what each rank has a part of, along dim."""

    dim: int = 1

    def split(self, module: Dropout, parts: Parts) -> nn.Module:
        return OwnDropout(module.p, self.dim, parts.group)


@dataclass(frozen=True)
class InsideExperts(Whole):
    """Experts, each of which is cut by columns and rows."""

    pieces: int

    def complaint(self, module: nn.Module, ranks: int) -> str:
        return uneven_parts(module.up.shape[2], self.pieces, "", ranks)

    def split(self, module: Experts, parts: Parts) -> nn.Module:
        return SplitExperts(module, parts)


def uneven_parts(size: int, pieces: int, heads: str, ranks: int) -> str:
    if size % pieces:
        return f"{pieces} pieces do not divide its size of {size:,}."
    if heads and pieces % ranks:
        return (
            f"{heads} = {pieces} is not divisible by {ranks} ranks, and a head is not cut: take a"
            f" number of ranks that divides {pieces}."
        )
    if pieces < ranks:
        return f"{pieces} pieces are fewer than {ranks} ranks, and each has one at least."
    return ""


TensorPlan = Mapping[str, Whole | tuple[Whole, ...]]  # several: one after the other


def gpt_plan(config: GPTConfig) -> dict[str, Whole | tuple[Whole, ...]]:
    """The plan of gpt.GPT. Attention is cut by groups of heads that share a key and a value."""
    heads, inner, vocabulary = config.key_value_heads, config.feed_forward, config.vocabulary
    plan: dict[str, Whole | tuple[Whole, ...]] = {
        "embedding": Whole(),  # the table of positions
        "embedding.tokens": Tokens(),
        "embedding.position_ids": Whole(),
        "embedding.dropout": Whole(),
        "blocks.*.attention_norm": Whole(),
        "blocks.*.attention": Around(),
        "blocks.*.attention.qkv": Columns(heads, "key_value_heads"),
        "blocks.*.attention.core.dropout": Drops(),  # masks of [B, A/t, S, S]
        "blocks.*.attention.output": Rows(heads, "key_value_heads"),
        "blocks.*.mlp_norm": Whole(),
        "blocks.*.mlp": Around(),  # one enter for up and gate
        "blocks.*.mlp.up": Columns(inner),
        "blocks.*.mlp.gate": Columns(inner),
        "blocks.*.mlp.down": Rows(inner),
        "blocks.*.dropout": Whole(),
        "head.norm": Whole(),
        "head.scores": (Columns(vocabulary), Around()),
    }
    if config.experts:
        shared, mlp = inner * config.shared_experts, "blocks.*.mlp"
        for name in ("", ".up", ".gate", ".down"):
            entry = plan.pop(mlp + name)
            if shared:
                plan[f"{mlp}.shared{name}"] = replace(entry, pieces=shared) if name else entry
        plan |= {f"{mlp}.router": Whole(), f"{mlp}.experts": InsideExperts(inner)}
    if not config.learned_positions:
        del plan["embedding"]
    if not config.gated_mlp:
        plan = {name: entry for name, entry in plan.items() if not name.endswith(".gate")}
    return plan
