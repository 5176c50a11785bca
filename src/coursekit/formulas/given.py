"""Rules between the quantities that the reader gives in more than one chapter. given.md has their
symbols, units, ranges and meanings; a topic has its own beside its formulas.
"""

from .registry import BOOK
from .subset import equal, floor_div, maximum, minimum, where

BOOK.given_beside(__file__)


@BOOK.rule(
    "heads = {heads} does not divide hidden = {hidden}: every head takes hidden / heads columns, so"
    " heads must divide hidden.",
    marks="heads",
    head_size=0,
)
def heads_divide_hidden(q):
    return equal(where(q.head_size > 0, q.hidden, q.heads * floor_div(q.hidden, q.heads)), q.hidden)


@BOOK.rule(
    "experts_per_token = {experts_per_token} of experts = {experts}: a token goes through at least"
    " one expert and at most all of them, and through none where there are none.",
    marks="experts_per_token",
)
def a_token_has_experts(q):
    return equal(
        maximum(minimum(q.experts_per_token, q.experts), where(q.experts > 0, 1, 0)),
        q.experts_per_token,
    )


@BOOK.rule(
    "dense_layers = {dense_layers} of layers = {layers} with dense_feed_forward ="
    " {dense_feed_forward}, experts = {experts}: layers without experts are at most all layers of a"
    " model of experts, and their MLP has a size; give both, or neither.",
    marks="dense_layers",
)
def dense_layers_have_a_size(q):
    return equal(
        maximum(minimum(q.dense_feed_forward, 1), q.dense_layers),
        minimum(
            where(q.dense_feed_forward > 0, where(q.experts > 0, q.dense_layers, 0), 0), q.layers
        ),
    )


@BOOK.rule(
    "key_value_latent = {key_value_latent} with query_latent = {query_latent}, value_columns ="
    " {value_columns}: latent attention makes values of a size of their own from the latent; give"
    " key_value_latent and value_columns, or none of these.",
    marks="key_value_latent",
)
def latents_have_values(q):
    return equal(
        minimum(q.key_value_latent, 1) + minimum(q.value_columns, 1),
        2 * minimum(q.key_value_latent + q.query_latent, 1),
    )


@BOOK.rule(
    "key_value_heads = {key_value_heads} does not divide heads = {heads}: each key-value head"
    " serves the same number of heads.",
    marks="key_value_heads",
)
def key_value_heads_divide_heads(q):
    return equal(q.key_value_heads * floor_div(q.heads, q.key_value_heads), q.heads)


@BOOK.rule(
    "data_parallel = {data_parallel} copies of {gpus_per_copy} GPUs each do not make gpus = {gpus}:"
    " the degrees must multiply to the number of GPUs.",
    marks="data_parallel",
)
def degrees_fill_the_gpus(q):
    return equal(q.data_parallel * q.gpus_per_copy, q.gpus)
