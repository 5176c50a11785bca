"""The pictures of memory: what autograd saves of a real block, and the shapes of a real GPT."""

from math import prod

import torch
from pages import words
from solved import Given
from torch.autograd.graph import saved_tensors_hooks

from coursekit.formulas import quantities
from coursekit.show.format import format_as
from coursekit.topics.where_the_memory_goes import pictures
from shardlab.gpt import GPT, GPTConfig


def test_autograd_keeps_what_the_picture_says():
    """Must catch: GELU's output for its input; an addition that keeps something."""
    sizes = dict(layers=1, hidden=8, heads=2, vocabulary=11, max_sequence=6)
    config = GPTConfig(**sizes)
    block, saved = GPT(config).blocks[0], []
    owned = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in owned:
            saved[-1] += tensor.untyped_storage().nbytes()
        return tensor

    x, nodes = torch.randn(3, 6, 8, requires_grad=True), []
    steps = (
        block.mlp_norm,
        block.mlp.up,
        lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
        block.mlp.down,
        lambda y: x + y,
    )
    y = x
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        for step in steps:
            saved.append(0)
            y = step(y)
            nodes.append(y.grad_fn)
    found = pictures.drawn_quantities(
        **{**config.quantities(), "model": "GPT-2 124M"}, microbatch=3, sequence=6
    )
    assert saved == pictures.kept_by_operation(found)
    for node, each in zip(nodes, pictures.MLP_OPERATIONS, strict=True):
        around = [node, *(before for before, _ in node.next_functions if before)]
        assert any(each.node in one.name() for one in around), (each, node.name())
    torch.testing.assert_close(y, x + block.mlp(block.mlp_norm(x)))


def test_shapes_are_those_of_the_model():
    """Must catch: queries, keys and values as one hidden size; a head of its own."""
    found = pictures.drawn_quantities()
    before, layer, after = pictures.model_parts(found)
    with torch.device("meta"):
        model = GPT(GPTConfig())
        tokens = torch.zeros(8, 1024, dtype=torch.long)
    block = model.blocks[0]
    modules = (
        model.embedding,
        block.attention_norm,
        block.attention.qkv,
        None,
        block.attention.output,
        block.mlp_norm,
        block.mlp.up,
        None,
        block.mlp.down,
        model.head.norm,
        model.head.scores,
    )
    drawn = (*before, *layer, *after)
    left = {}
    for number, module in enumerate(modules):
        if module is not None:
            keep = lambda _, __, out, number=number: left.__setitem__(number, tuple(out.shape))
            module.register_forward_hook(keep)
    x = model.embedding.tokens(tokens) + model.embedding.positions[:1024]
    left[0] = tuple(x.shape)
    model.head(block(x))
    for number, (part, module) in enumerate(zip(drawn, modules, strict=True)):
        if module is None:
            continue
        assert left[number] == (8, 1024, *part.leaves), part
        tied = part.name == "head, tied"
        own = [] if tied else sorted(p.numel() for p in module.parameters())
        assert sorted(map(prod, part.weights)) == own, part


def test_the_boxes_add_up_to_the_model():
    """Must catch: a weight that is counted twice, or left out."""
    found = pictures.drawn_quantities()
    before, layer, after = pictures.model_parts(found)
    count = lambda group: sum(prod(shape) for part in group for shape in part.weights)
    total = count(before) + found["layers"] * count(layer) + count(after)
    assert total == found["parameters"]
    given = quantities(model="GPT-2 124M")
    assert count(layer) == Given(**given).layer_parameters


def test_the_picture_prints_the_formulas_bytes():
    """Must catch: bytes of an arrow in another type than its bytes say."""
    found, shown = pictures.drawn_quantities(), words(pictures.draw_gpt())
    for name in ("residual_bytes", "inner_bytes", "logit_bytes"):
        assert format_as(found[name], "decimal bytes") in shown
    _, layer, _ = pictures.model_parts(found)
    tokens = found["microbatch_tokens"] * found["compute_element_bytes"]
    arrows = sum(tokens * prod(part.leaves) for part in layer)
    assert round(found["logit_bytes"] / arrows) == 4  # as the caption says
    kept = words(pictures.draw_autograd())
    assert format_as(sum(pictures.kept_by_operation(found)), "decimal bytes") in kept
