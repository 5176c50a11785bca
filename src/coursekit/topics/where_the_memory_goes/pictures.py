"""Still pictures of memory: what autograd keeps of an MLP, and the whole GPT with the shape and the
bytes on every arrow."""

from math import prod
from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said

DRAWN_MODEL = dict(model="GPT-2 124M", recipe="fp32 Adam", microbatch=8, sequence=1024)
DRAWN_STEP = dict(dropout=0, fused_attention=1, accumulation_steps=1)
DRAWN_QUANTITIES = (
    "microbatch_tokens",
    "residual_bytes",
    "norm_activation_bytes",
    "linear_input_bytes",
    "inner_bytes",
    "query_key_value_size",
    "query_bytes",
    "logit_bytes",
    "parameters",
    "embedding_parameters",
    "attention_parameters",
    "mlp_parameters",
    "norm_parameters",
    "layer_parameters",
)


def drawn_quantities(**given):
    """The quantities of the pictures, by name."""
    found = quantities(**{**DRAWN_MODEL, **DRAWN_STEP, **given})
    return {**found, **evaluate(DRAWN_QUANTITIES, allow_unused=True, **found)}


# --- what autograd keeps --------------------------------------------------------------------------


class DrawnOperation(NamedTuple):
    """A step of forward, the node that autograd makes of it, and the activations it keeps: words,
    and the quantity that says their bytes."""

    name: str
    node: str
    keeps: str = ""
    quantity: str = ""


MLP_OPERATIONS = (
    DrawnOperation("LayerNorm", "NativeLayerNorm", "input and statistics", "norm_activation_bytes"),
    DrawnOperation("× W up", "Addmm", "input", "linear_input_bytes"),
    DrawnOperation("GELU", "Gelu", "input", "inner_bytes"),
    DrawnOperation("× W down", "Addmm", "input", "inner_bytes"),
    DrawnOperation("+ x", "Add"),
)


def kept_by_operation(found):
    """The activation bytes that each operation keeps."""
    return [found[each.quantity] if each.quantity else 0 for each in MLP_OPERATIONS]


def draw_autograd():
    found = drawn_quantities()
    kept = kept_by_operation(found)
    drawing = Drawing("autograd", "An MLP forward, what autograd keeps of it, and backward")
    unit, rows, top = 96 / max(kept), 68, 52
    drawing.text(44, 16, "forward", "middle bold")
    drawing.text(192, 16, "kept for backward", "middle bold")
    drawing.text(346, 16, "backward", "middle bold")
    drawing.text(44, 36, "x", "middle")
    drawing.text(346, 36, "gradient of x", "middle small")
    for row, (each, nbytes) in enumerate(zip(MLP_OPERATIONS, kept)):
        y = top + rows * row
        drawing.arrow(44, y - 12 if row == 0 else y - rows + 34, 44, y - 1, "line forward")
        drawing.box(2, y, 84, 32, "quiet", 4)
        drawing.text(44, y + 21, each.name, "middle small")
        drawing.arrow(346, y - 1, 346, y - 12 if row == 0 else y - rows + 34, "line backward")
        drawing.box(294, y, 104, 32, "quiet", 4)
        drawing.text(346, y + 21, each.node, "middle small")
        if nbytes:
            wide = nbytes * unit
            drawing.box(144, y + 1, wide, 30, "activations", 3)
            drawing.text(144, y + 48, f"{each.keeps}: {said(nbytes)}", "small")
            drawing.arrow(88, y + 16, 142, y + 16)
            drawing.arrow(146 + wide, y + 16, 292, y + 16)
        else:
            drawing.text(190, y + 21, "nothing", "middle small soft")
    bottom = top + rows * len(MLP_OPERATIONS) - 34
    drawing.arrow(44, bottom, 44, bottom + 20, "line forward")
    drawing.arrow(346, bottom + 20, 346, bottom, "line backward")
    drawing.text(44, bottom + 36, "y", "middle")
    drawing.text(346, bottom + 36, "gradient of y", "middle small")
    drawing.text(192, bottom + 36, f"together {said(sum(kept))}", "middle small bold")
    listed = "; ".join(
        f"{each.name} keeps {f'its {each.keeps}, {said(nbytes)}' if nbytes else 'nothing'}, for"
        f" {each.node}Backward"
        for each, nbytes in zip(MLP_OPERATIONS, kept)
    )
    words = (
        "Three columns. Left, forward runs down through five operations, from x to y. Right,"
        " backward runs up through autograd's node of each, from the gradient of y to that of x. In"
        f" the middle lies what each operation keeps for its node: {listed}. Together"
        f" {said(sum(kept))}."
    )
    return drawing.svg(bottom + 42, words)


# --- the model behind the formulas ----------------------------------------------------------------


class ModelPart(NamedTuple):
    """A box of the model: its work, the shapes of its weights, and the tensor that leaves it, with
    its last sizes after batch and tokens, and the bytes of an element."""

    name: str
    weights: tuple
    leaves: tuple


def model_parts(found):
    """The boxes of the model from top to bottom: before the layers, of one layer, after them."""
    hidden, inner = found["hidden"], found["feed_forward"]
    qkv, vocabulary = found["query_key_value_size"], found["vocabulary"]
    norm, positions = ((hidden,), (hidden,)), (found["max_sequence"], hidden)
    before = (ModelPart("embedding", ((vocabulary, hidden), positions), (hidden,)),)
    layer = (
        ModelPart("LayerNorm", norm, (hidden,)),
        ModelPart("queries, keys, values", ((hidden, qkv), (qkv,)), (qkv,)),
        ModelPart(f"attention of {found['heads']} heads", (), (hidden,)),
        ModelPart("output, + x", ((hidden, hidden), (hidden,)), (hidden,)),
        ModelPart("LayerNorm", norm, (hidden,)),
        ModelPart("up", ((hidden, inner), (inner,)), (inner,)),
        ModelPart("GELU", (), (inner,)),
        ModelPart("down, + x", ((inner, hidden), (hidden,)), (hidden,)),
    )
    after = (ModelPart("LayerNorm", norm, (hidden,)), ModelPart("head, tied", (), (vocabulary,)))
    return before, layer, after


def draw_gpt():
    found = drawn_quantities()
    before, layer, after = model_parts(found)
    lead = (found["microbatch"], found["sequence"])
    element = found["compute_element_bytes"]
    drawing = Drawing("gpt", "GPT-2 124M: the shape and the bytes on every arrow")
    middle, wide = 122, 168
    place = [18]
    heard = []

    def arrow(shape, nbytes):
        y = place[0]
        words = f"[{' × '.join(f'{n:,}' for n in shape)}]"
        drawing.arrow(middle, y, middle, y + 30)
        drawing.text(middle + 12, y + 19, f"{words}, {said(nbytes)}", "small")
        heard.append(f"an arrow {words}, {said(nbytes)}")
        place[0] = y + 31

    def box(part):
        y = place[0]
        drawing.box(
            middle - wide / 2, y, wide, 30, "parameters pale" if part.weights else "quiet", 4
        )
        drawing.text(middle, y + 20, part.name, "middle small")
        count = sum(map(prod, part.weights))
        if count:
            drawing.text(middle + wide / 2 + 8, y + 13, f"{count:,} parameters", "small")
            matrix = max(part.weights, key=prod)
            shape = " × ".join(f"{n:,}" for n in matrix)
            drawing.text(middle + wide / 2 + 8, y + 29, f"[{shape}]", "small soft")
        heard.append(f"{part.name}, {count:,} parameters" if count else part.name)
        place[0] = y + 30

    drawing.text(middle, 13, "tokens", "middle bold")
    arrow(lead, 8 * prod(lead))
    box(before[0])
    arrow((*lead, *before[0].leaves), element * prod((*lead, *before[0].leaves)))
    top = place[0] - 8
    for part in layer:
        box(part)
        arrow((*lead, *part.leaves), element * prod((*lead, *part.leaves)))
    drawing.box(1, top, 398, place[0] - top - 25, "frame dashed", 8)
    drawing.text(5, (top + place[0]) / 2, f"× {found['layers']}", "bold")
    heard.append(f"the last eight boxes are a layer, one of {found['layers']}")
    for part in after:
        box(part)
        arrow((*lead, *part.leaves), element * prod((*lead, *part.leaves)))
    drawing.text(middle, place[0] + 14, "logits, then the loss", "middle bold")
    words = (
        f"Boxes from top to bottom, with {lead[0]} sequences of {lead[1]:,} tokens in fp32:"
        f" {'; '.join(heard)}. Together {found['parameters']:,} parameters."
    )
    return drawing.svg(place[0] + 22, words)


PICTURES = {"autograd": draw_autograd, "gpt": draw_gpt}
