"""Wrong solutions of the assignment on tensor parallelism: each misconception gets its
sentence. The core and the hardened class are tried in assignments/."""

import pytest
from graded import check_sentence, text_of

from shardlab.tensor_parallel import core

pytestmark = pytest.mark.ranks
TOPIC = "tensor_parallelism"

SOLUTION = text_of(core)


SUMMED = "        return leave(gradient, ctx.group), None"
WRONG = {
    "enter that sums nothing": (
        "entered",
        "parity",
        (SUMMED, "        return gradient, None"),
        "all ranks have used x, so its gradient is a sum over them",
    ),
    "a gradient summed in place": (
        "entered",
        "parity",
        ("    x = x.contiguous().clone()\n", "    x = x.contiguous()\n"),
        "backward wrote into a gradient that others use too: sum a copy.",
    ),
    "leave that sums twice": (
        "left",
        "parity",
        (
            "        return enter(gradient, ctx.group), None",
            SUMMED,
        ),
        "the gradient of a sum is that of each part, and all ranks have it already",
    ),
    "an all-reduce that autograd does not see": (
        "left",
        "parity",
        ("    return Leave.apply(x, group)", "    return total(x.detach(), group)"),
        "write an autograd.Function",
    ),
    "the first rows for all": (
        "columns",
        "parity",
        ("    begin = me * each + min(me, more)\n", "    begin = 0\n"),
        "the output of ColumnLinear",
    ),
    "the rest on the last rank": (
        "columns",
        "parity",
        (
            "    begin = me * each + min(me, more)\n    return begin, begin + each + (me < more)",
            "    return me * each, size if me == n - 1 else (me + 1) * each",
        ),
        "should have the shape",
    ),
    "a bias on each rank": (
        "rows",
        "parity",
        (
            (
                "        y = self.leave(F.linear(x, self.weight), self.group)  # [..., out]\n"
                "        return y if self.bias is None else y + self.bias"
            ),
            "        return leave(F.linear(x, self.weight, self.bias), self.group)",
        ),
        "The bias is added on each rank: add it once, after the sum.",
    ),
    "tokens of others": (
        "tokens",
        "parity",
        (
            "return self.leave(x * own.unsqueeze(-1), self.group)",
            "return self.leave(x, self.group)",
        ),
        "the output of TokenEmbedding",
    ),
    "a maximum of this rank": (
        "losses",
        "parity",
        ("        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n", ""),
        "the loss of scores around 0",
    ),
    "no maximum": (
        "losses",
        "parity",
        ("shifted = wide - largest", "shifted = wide.clone()"),
        "subtract the largest score of all ranks before exp",
    ),
    "a sum over tokens": (
        "losses",
        "parity",
        ("begin, group).mean()", "begin, group).sum()"),
        "It is the sum over tokens: divide by their number.",
    ),
    "the gradient that arrives is forgotten": (
        "losses",
        "parity",
        (
            "        d = softmax",
            "        gradient = torch.full_like(gradient, 1 / own.numel())\n        d = softmax",
        ),
        "multiply by the gradient that arrives",
    ),
    "the softmax": (
        "losses",
        "parity",
        ("-(gradient * own)", "0 * (gradient * own)"),
        "differ",
    ),
    "both functions send both ways": (
        "messages_of_a_pair",
        "bytes",
        (
            "        return x.view_as(x)",
            "        return total(x, group) / dist.get_world_size(group)",
        ),
        "one all-reduce of 120 bytes",
    ),
    "gathered scores": (
        "numbers_of_a_token",
        "bytes",
        (
            "        wide = scores.to(",
            (
                "        places = [torch.empty_like(scores) for _ in range(4)]\n"
                "        dist.all_gather(places, scores.detach().contiguous(), group=group)\n"
                "        wide = scores.to("
            ),
        ),
        "its largest score, the sum of its exponentials and its target's score are three",
    ),
    "up and gate enter on their own": (
        "bytes_of_a_block",
        "bytes",
        (
            "for module in (attention, mlp):",
            "for module in filter(None, (attention, mlp.up, mlp.gate)):",
        ),
        "Layers that take the same input enter once.",
    ),
    "whole weights": (
        "bytes_of_a_block",
        "bytes",
        ("    return block\n", "    block.whole = nn.Linear(16, 16)\n    return block\n"),
        "that stay whole",
    ),
    "no enter": (
        "blocks",
        "parity",
        ("lambda _, args: enter(args[0], group)", "lambda _, args: None"),
        "the gradient of the input of GPT-2's block",
    ),
    "scores of any size": (
        "wrong_scores",
        "faults",
        ("    if scores.shape[-1] != end - begin:", "    if False:"),
        "should raise ValueError",
    ),
    "a loss in bf16": (
        "wrong_scores",
        "faults",
        ("wide = scores.to(torch.promote_types(scores.dtype, torch.float32))", "wide = scores"),
        "sums of exponentials need fp32",
    ),
    "any token": (
        "unknown_tokens",
        "faults",
        ("        check_range(tokens, self.vocabulary)\n", ""),
        "should raise IndexError or ValueError",
    ),
    "heads that are cut": (
        "heads_that_cannot_be_cut",
        "faults",
        ("    if heads % n:", "    if False:"),
        "split_block of 8 heads on 3 ranks should raise ValueError",
    ),
    "frozen parts that are trained": (
        "frozen_parts",
        "faults",
        (".clone(), p.requires_grad)", ".clone())"),
        "of a frozen attention is trained after split_block",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), TOPIC, SOLUTION, WRONG[name])
