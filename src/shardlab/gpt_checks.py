"""Refusals of gpt.py and text.py: sizes that no GPT or batch has, and tokens that a GPT cannot
read. Each refusal is one sentence with the value and the rule."""

from numbers import Integral

import torch
from torch import Tensor

from .common.torch_internals import active_fake_mode
from .experts.hardened.torch_replicas import watch_torch

MAY_BE_NONE = ("head_size", "experts", "experts_per_token", "shared_experts")
SWITCHES = ("learned_positions", "biases", "gated_mlp", "tied_head")


class InvalidInput(ValueError):
    """`name` is the wrong argument, `value` its value."""

    def __init__(self, name: str, value, rule: str):
        super().__init__(f"{name} = {value}: {rule}")
        self.name, self.value = name, value


def complete(sizes: dict[str, int | None]) -> dict[str, int]:
    """The sizes of a GPTConfig as whole numbers, open ones filled in."""
    sizes = dict(sizes)
    for name in sizes:
        if name == "key_value_heads" and sizes[name] is None:
            sizes[name] = sizes["heads"]
        if name == "feed_forward" and sizes[name] is None:
            sizes[name] = 4 * sizes["hidden"]
        limits = (0, 1) if name in SWITCHES else (0 if name in MAY_BE_NONE else 1, None)
        sizes[name] = whole_number(name, sizes[name], *limits)
    experts, per_token = sizes["experts"], sizes["experts_per_token"]
    rule = "a model with experts = 0 has one MLP, of all tokens."
    if experts:
        rule = f"a token goes through 1 to experts = {experts} of them."
    if not min(experts, 1) <= per_token <= experts:
        raise InvalidInput("experts_per_token", per_token, rule)
    if sizes["shared_experts"] and not experts:
        raise InvalidInput("shared_experts", sizes["shared_experts"], rule)
    if experts:
        watch_torch()
    hidden, heads, key_value_heads = (
        sizes[name] for name in ("hidden", "heads", "key_value_heads")
    )
    if hidden % heads and not sizes["head_size"]:
        raise InvalidInput("heads", heads, f"heads must divide hidden = {hidden}.")
    if heads % key_value_heads:
        rule = f"key_value_heads must divide heads = {heads}."
        raise InvalidInput("key_value_heads", key_value_heads, rule)
    if not sizes["learned_positions"] and (sizes["head_size"] or hidden // heads) % 2:
        rule = "rotary positions turn pairs of elements, so {} must be even."
        if sizes["head_size"]:
            raise InvalidInput("head_size", sizes["head_size"], rule.format("head_size"))
        raise InvalidInput("heads", heads, rule.format("hidden / heads"))
    return sizes


def whole_number(name: str, value, least: int, most: int | None) -> int:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, Integral) and least <= number and (most is None or number <= most):
        return int(number)
    limit = "" if most is None else f" and at most {most}"
    rule = f"{name} must be a whole number of at least {least}{limit}."
    raise InvalidInput(name, value, rule)


def check_settings(dropout: float, fused_attention: bool):
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        rule = "dropout must be a number of at least 0 and below 1."
        raise InvalidInput("dropout", dropout, rule)
    if not isinstance(fused_attention, bool):
        rule = "fused_attention must be True or False."
        raise InvalidInput("fused_attention", fused_attention, rule)


def check_tokens(tokens: Tensor, max_sequence: int):
    if not isinstance(tokens, Tensor):
        rule = "a GPT takes a tensor of tokens, [sequences, tokens in each]."
        raise InvalidInput("tokens", f"a {type(tokens).__name__}", rule)
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        value = f"{str(tokens.dtype).removeprefix('torch.')} {list(tokens.shape)}"
        rule = "a GPT takes int64 or int32 tokens, [sequences, tokens in each]."
        raise InvalidInput("tokens", value, rule)
    if tokens.shape[1] > max_sequence:
        rule = f"a sequence must not be longer than max_sequence = {max_sequence}."
        raise InvalidInput("sequence", tokens.shape[1], rule)


def unknown_token(tokens: Tensor, vocabulary: int, error: IndexError) -> Exception:
    """Why the table of tokens raised `error`. Only a CPU raises it: on a GPU, CUDA ends the process
    with an assertion of its own, and to ask before would make it wait for every batch."""
    outside = tokens[(tokens < 0) | (tokens >= vocabulary)].tolist()
    if not outside:
        return error
    return InvalidInput("token", outside[0], f"the vocabulary has tokens 0 to {vocabulary - 1}.")


def check_range(tokens: Tensor, vocabulary: int):
    """No rank has the vector of a token outside of the vocabulary, and a sum of zeros raises
    nothing. On a GPU, looking would wait for it; a fake tensor has nothing to see."""
    if tokens.device.type == "cpu" and tokens.numel() and active_fake_mode() is None:
        least, most = (int(bound) for bound in tokens.aminmax())
        if least < 0 or most >= vocabulary:
            raise IndexError(
                f"token {least if least < 0 else most}: there are 0 to {vocabulary - 1}."
            )
