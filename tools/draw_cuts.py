"""Draw chapters/figures/mlp-cut.svg and attention-cut.svg: one block of a transformer cut among the
ranks of a tensor-parallel group, each arrow with its shape and its bytes.

    .venv/bin/python tools/draw_cuts.py

The model is the one chapter 7 speaks of. Shapes and bytes are quantities of the formula registry.
Colours are the page's variables, so the figures follow the light and the dark page.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from coursekit.formulas import evaluate, quantities
from coursekit.show.format import format_as

FIGURES = Path(__file__).resolve().parents[1] / "chapters" / "figures"
GIVEN = quantities(
    recipe="bf16 + fp32 master",
    layers=48,
    hidden=6144,
    heads=64,
    key_value_heads=64,
    feed_forward=24_576,
    vocabulary=51_200,
    biases=1,
    gated_mlp=0,
    microbatch=4,
    sequence=2048,
    tensor_parallel=8,
    tensor_rank=0,
    sequence_parallel=0,
    regather=0,
)
NAMES = (
    "microbatch_tokens",
    "tensor_feed_forward",
    "tensor_message_bytes",
    "tensor_layer_forward_sent_bytes",
    "query_key_value_size",
)
WIDTH, HEIGHT, LANE, MATRIX = 430, 566, 168, (76, 44)
CENTRES = (112, 332)  # of the two ranks that are drawn: the first and the last
DARK = "#14171a"  # words on a fill, the same on both pages


@dataclass(frozen=True)
class Block:
    """The drawing of a block: texts from top to bottom, sizes in columns."""

    name: str
    title: str
    first: str  # the weight that is cut by columns
    inner: int  # columns of a rank that come out of it
    between: str  # what happens there
    then: int  # columns of a rank that go into the next weight
    second: str  # the weight that is cut by rows
    more: str = ""  # beside the number of columns


def counted():
    """The quantities of the figures, by name."""
    return {**GIVEN, **evaluate(NAMES, allow_unused=True, **GIVEN)}


def blocks(found):
    """The two figures."""
    t, heads = found["tensor_parallel"], found["heads"]
    return (
        Block(
            "mlp-cut",
            "An MLP on eight ranks: columns, GELU, rows",
            "A",
            found["tensor_feed_forward"],
            "GELU",
            found["tensor_feed_forward"],
            "B",
        ),
        Block(
            "attention-cut",
            "Attention on eight ranks: heads are columns, then rows",
            "QKV",
            found["query_key_value_size"] // t,
            f"attention of {heads // t} heads",
            found["hidden"] // t,
            "O",
            f", {heads // t} of {heads} heads",
        ),
    )


def draw(block, found):
    """The figure as SVG."""
    t, tokens, hidden = found["tensor_parallel"], found["microbatch_tokens"], found["hidden"]
    whole = said(tokens, hidden, found)
    first, second = said(tokens, block.inner, found), said(tokens, block.then, found)
    # a block has half of what its layer sends forward
    sent = format_as(found["tensor_layer_forward_sent_bytes"] // 2, "decimal bytes")
    marks = [band(58, "enter", "forward: nothing", f"backward: all-reduce, sends {sent}")]
    marks += [band(476, "leave", f"forward: all-reduce, sends {sent}", "backward: nothing")]
    for place, x in zip((0, t - 1), CENTRES):
        marks += [
            text(x, 16, f"rank {place}", weight=600),
            text(x, 34, f"x {whole}"),
            arrow(x, 39, 56),
            arrow(x, 100, 128),
            matrix(x, 130, place / t, 1 / t, columns=True),
            text(x, 190, f"1/{t} of the columns of {block.first}", soft=True),
            text(x, 205, f"[{hidden:,} × {block.inner:,}]", soft=True),
            arrow(x, 211, 252, first),
            pill(x, 254, block.between),
            arrow(x, 279, 320, second),
            matrix(x, 322, place / t, 1 / t, columns=False),
            text(x, 382, f"1/{t} of the rows of {block.second}", soft=True),
            text(x, 397, f"[{block.then:,} × {hidden:,}]", soft=True),
            arrow(x, 403, 474, "a term of the sum", whole),
            arrow(x, 518, 546),
            text(x, 560, f"y {whole}"),
        ]
    marks += [text(sum(CENTRES) / 2, y, "…", weight=600) for y in (16, 156, 271, 348)]
    words = (
        f"Data flow downwards on rank 0 and on rank {t - 1}. Both have the whole input,"
        f" {whole}. Enter sends nothing forward and makes an all-reduce backward. Each multiplies"
        f" by its columns of {block.first}, {hidden:,} times {block.inner:,}, and has"
        f" {first}{block.more}. After {block.between} each multiplies {second} by its rows of"
        f" {block.second} and has a term of the output, as large as the whole. Leave adds the terms"
        f" up in an all-reduce, for which a rank sends {sent}; backward it sends nothing."
    )
    ident = block.name
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            f' width="{WIDTH}" role="img" aria-labelledby="{ident}-title {ident}-text"'
            ' style="display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto"'
            ' font-family="inherit" font-size="13" fill="currentColor">',
            f'  <title id="{ident}-title">{escape(block.title)}</title>',
            f'  <desc id="{ident}-text">{escape(words)}</desc>',
            *(f"  {mark}" for mark in marks),
            "</svg>",
            "",
        ]
    )


def said(rows, columns, found):
    """Shape and bytes of a tensor."""
    nbytes = found["compute_element_bytes"] * rows * columns
    return f"[{rows:,} × {columns:,}], {format_as(nbytes, 'decimal bytes')}"


# --- marks ----------------------------------------------------------------------------------------


def text(x, y, words, weight=400, soft=False, fill="", anchor="middle"):
    more = f' font-weight="{weight}"' * (weight != 400) + ' font-size="12"' * soft
    more += f' fill="{fill}"' * bool(fill)
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def arrow(x, top, bottom, *lines):
    """Down, around the lines of words in its middle."""
    head = f'<path d="M{x:g} {bottom}l-4 -7h8z"/>'
    if not lines:
        return head + stroke(x, top, bottom - 6)
    begin = (top + bottom) / 2 - 8 * len(lines) - 2
    words = [text(x, begin + 13 + 16 * k, line) for k, line in enumerate(lines)]
    shafts = stroke(x, top, begin) + stroke(x, begin + 16 * len(lines) + 2, bottom - 6)
    return head + shafts + "".join(words)


def stroke(x, top, bottom):
    return f'<path d="M{x:g} {top:g}V{bottom:g}" stroke="currentColor" fill="none"/>'


def matrix(x, top, begin, share, columns):
    """A weight, of which the rank has a stripe."""
    wide, high = MATRIX
    left = x - wide / 2
    whole = (
        f'<rect x="{left:g}" y="{top}" width="{wide}" height="{high}" fill="none"'
        ' style="stroke: var(--line-strong)" stroke-dasharray="2 3"/>'
    )
    place = (
        (left + begin * wide, top, share * wide, high)
        if columns
        else (left, top + begin * high, wide, share * high)
    )
    box = 'x="{:g}" y="{:g}" width="{:g}" height="{:g}"'.format(*place)
    colours = "fill: var(--memory-parameters); stroke: var(--memory-parameters-line)"
    return f'{whole}<rect {box} style="{colours}"/>'


def pill(x, top, words):
    colours = "fill: var(--memory-activations); stroke: var(--memory-activations-line)"
    return (
        f'<rect x="{x - LANE / 2 + 8:g}" y="{top}" width="{LANE - 16}" height="24" rx="12"'
        f' style="{colours}"/>' + text(x, top + 17, words, fill=DARK)
    )


def band(top, name, forward, backward):
    """The band of what the ranks do together."""
    colours = "fill: none; stroke: var(--timeline-communication-line)"
    return (
        f'<rect x="10" y="{top}" width="{WIDTH - 20}" height="40" rx="6" stroke-width="2"'
        f' style="{colours}"/>'
        + text(22, top + 25, name, weight=600, anchor="start")
        + text(92, top + 17, forward, anchor="start")
        + text(92, top + 33, backward, anchor="start")
    )


if __name__ == "__main__":
    numbers = counted()
    for each in blocks(numbers):
        path = FIGURES / f"{each.name}.svg"
        path.write_text(draw(each, numbers), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")
