"""A data-parallel step as events, and the buckets of a model as a list of bytes. What the formulas
of this chapter say in closed form, coursekit/formulas/events.py plays event by event.
"""

from collections.abc import Iterable, Iterator, Mapping

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat

# Backward begins with the head. Where the head has a weight of its own, its gradient leaves first.
# Then come the layers, in `equal_buckets` equal pieces. The token table comes last of all.
STEP = (
    Phase("forward", (Event("forward", COMPUTE, "rank_forward_seconds"),)),
    Phase(
        "backward",
        (
            Event("backward", COMPUTE, "head_backward_seconds"),
            Event("head", LINK, "head_bucket_seconds", ("backward",), unless=(("tied_head", 1),)),
            Repeat(
                "equal_buckets",
                (
                    Event("backward", COMPUTE, "bucket_backward_seconds"),
                    Event("bucket", LINK, "equal_bucket_seconds", ("backward",)),
                ),
            ),
            Event("table", LINK, "last_buckets_seconds", ("backward",)),
        ),
    ),
    Phase("update", (Event("update", COMPUTE, "update_seconds"),)),
)

COLOURS = (
    ("forward", "forward", "timeline-forward"),
    ("backward", "backward", "timeline-backward"),
    ("update", "update", "timeline-weight-gradient"),
    ("head", "head", "memory-temporaries"),
    ("bucket", "layers", "timeline-communication"),
    ("table", "tables, ready last", "memory-gathered"),
)


def gradient_tensors(given: Mapping[str, int]) -> Iterator[int]:
    """Elements of each parameter tensor of the GPT of gpt.py, in the order in which backward makes
    their gradients: the reverse of model.parameters()."""
    hidden, inner = given["hidden"], given["feed_forward"]
    columns = hidden + 2 * given["key_value_heads"] * (hidden // given["heads"])

    def linear(rows, columns):
        yield from [rows] * given["biases"]
        yield rows * columns

    def norm():
        yield from [hidden] * (1 + given["biases"])

    if not given["tied_head"]:
        yield given["vocabulary"] * hidden
    yield from norm()
    for _ in range(given["layers"]):
        yield from linear(hidden, inner)  # down
        for _ in range(given["gated_mlp"]):
            yield from linear(inner, hidden)
        yield from linear(inner, hidden)  # up
        yield from norm()
        yield from linear(hidden, hidden)  # the output of attention
        yield from linear(columns, hidden)  # queries, keys and values
        yield from norm()
    yield given["vocabulary"] * hidden
    if given["learned_positions"]:
        yield given["max_sequence"] * hidden


def bucket_list(tensor_bytes: Iterable[int], bucket_bytes: int) -> list[int]:
    """Bytes of each bucket. The rule is that of data_parallel.make_buckets: a bucket is closed once
    it holds `bucket_bytes` or more."""
    buckets, filling = [], 0
    for nbytes in tensor_bytes:
        filling += nbytes
        if filling >= bucket_bytes:
            buckets.append(filling)
            filling = 0
    return buckets + [filling] * (filling > 0)
