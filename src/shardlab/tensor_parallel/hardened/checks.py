"""Refusals of tensor parallelism, before any rank starts: one sentence each.

check_plan(model, plan, ranks=4, ranks_per_node=8)       # needs no ranks
"""

import re
import warnings

from torch import nn

from ...common.cross_node_warning import CrossesNodes
from ...common.torch_internals import hooks_of_others
from ...gpt import Dropout
from .layers import Cut
from .plan import Around, Columns, Rows, TensorPlan, Whole


class CannotSplit(ValueError):
    """Why this model cannot be split by this plan among so many ranks: one sentence."""


def check_plan(model: nn.Module, plan: TensorPlan, ranks: int, ranks_per_node: int | None = None):
    """Raise CannotSplit, or warn, as apply_tensor_parallel would. Needs no ranks, and no memory for
    a model on the meta device."""
    if wrong := plan_complaint(model, plan, ranks):
        raise CannotSplit(wrong)
    warn_of_nodes(ranks, ranks_per_node)


def plan_complaint(model: nn.Module, plan: TensorPlan, ranks: int) -> str:
    """The fault of a plan, in words; empty if there is none."""
    named, found = dict(model.named_modules()), matches(model, plan)
    for pattern in plan:
        if not any(match(pattern, name) for name in named):
            return f"the plan names {pattern}, and this {type(model).__name__} has no such module."
    names = [name for name, _ in found]
    for name, entry in found:
        if names.count(name) > 1:
            return f"{name} is named twice in the plan: each module is cut in one way."
        if wrong := next(filter(None, (e.complaint(named[name], ranks) for e in entry)), ""):
            return f"{name}: {wrong}"
        if any(e.cuts(named[name]) for e in entry) and (wrong := would_lose(named[name])):
            return f"{name}: a {type(named[name]).__name__} with {wrong}, which a part has not."
    for name, module in named.items():
        own = [key for key, _ in module.named_parameters(recurse=False)]
        if name not in names and (own or isinstance(module, Dropout | nn.Dropout)):
            has = f"has {' and '.join(own)}" if own else "drops elements"
            return (
                f"the plan leaves out {name or 'the model itself'}, which {has}: name it, as"
                " Whole() if it is not cut."
            )
    entries = dict(found)
    return in_two_places(model, entries) or untied(model, entries) or never_entered(entries)


def never_entered(entries: dict[str, tuple[Whole, ...]]) -> str:
    """Columns take what is whole, and its gradient is a sum over ranks, which Around makes."""
    entered = {name for name, entry in entries.items() if any(isinstance(e, Around) for e in entry)}
    for name, entry in entries.items():
        parents = name.split(".")
        around = {".".join(parents[:end]) for end in range(len(parents) + 1)}
        columns = any(isinstance(e, Columns) and not isinstance(e, Rows) for e in entry)
        if columns and not entered & around:
            return (
                f"{name} is cut by columns, and neither it nor a module around it is Around(), so"
                " each rank would go on with its own part of the input's gradient: name one of"
                f' them so, such as "{name}": (Columns(...), Around()).'
            )
    return ""


def would_lose(module: nn.Module) -> str:
    """The things of a module that its part would lose, because a plain layer replaces it. Empty if
    nothing."""
    usual = nn.Linear.forward if isinstance(module, nn.Linear) else nn.Embedding.forward
    own = {name for name, _ in module.named_parameters(recurse=False)}
    if type(module).forward is not usual or "forward" in vars(module):
        return "a forward of its own"
    if "weight" not in own or own - {"weight", "bias"}:
        return f"the parameters {', '.join(sorted(own))}"
    if any(map(hooks_of_others, (module, *module.parameters()))):
        return "hooks"
    return ""


def in_two_places(model: nn.Module, entries: dict[str, tuple[Whole, ...]]) -> str:
    """A module of two others is cut in one of them alone."""
    first = {module: name for name, module in model.named_modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        there = first[module]
        around, around_there = (model.get_submodule(n.rpartition(".")[0]) for n in (name, there))
        if around is not around_there and any(e.cuts(module) for e in entries.get(there, ())):
            return (
                f"{there} and {name} are one module, of which only the first would be cut: take two"
                " modules that share a weight."
            )
    return ""


def untied(model: nn.Module, entries: dict[str, tuple[Whole, ...]]) -> str:
    """A parameter that modules share is cut in one way."""
    seen: dict[nn.Parameter, tuple[str, Cut | None]] = {}
    for name, module in model.named_modules():
        cuts = {key: cut for e in entries.get(name, ()) for key, cut in e.cuts(module).items()}
        for key, parameter in module.named_parameters(recurse=False):
            here = f"{name}.{key}", cuts.get(key)
            there = seen.setdefault(parameter, here)
            if there[1] != here[1]:
                return f"{there[0]} and {here[0]} are one parameter, and the plan cuts them apart."
    return ""


def matches(model: nn.Module, plan: TensorPlan) -> list[tuple[str, tuple[Whole, ...]]]:
    """(name of a module, what becomes of it), in the order of the plan."""
    return [
        (name, entry if isinstance(entry, tuple) else (entry,))
        for pattern, entry in plan.items()
        for name, _ in model.named_modules()
        if match(pattern, name)
    ]


def match(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+"), name) is not None


def warn_of_nodes(ranks: int, ranks_per_node: int | None):
    if ranks_per_node is not None and ranks > ranks_per_node:
        warnings.warn(
            f"tensor parallelism over {ranks} ranks on nodes of {ranks_per_node}: each layer's"
            f" all-reduces, {8 * (ranks - 1) / ranks:.1f} vectors of the hidden size sent for each"
            " token, cross the links between nodes, where data parallelism sends its gradients"
            " once a step.",
            CrossesNodes,
            stacklevel=3,
        )
