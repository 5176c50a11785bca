"""Working sets: what is live while the head, or one layer, is at work: saved tensors that are still
there, new gradients, and tensors that come and go. Only places that can be the peak of a step are
listed.
"""

# A product y = x W goes backward in this order: the gradients of x and W are made while x and y's
# gradient are there, and under autocast W's 16-bit copy. Under autocast those two are then made
# fp32, one after the other, while the weight's 16-bit gradient is still there: for a short sequence
# and a large weight that is the larger place. It is called a cast, and comes before its product
# where both are as large.
#
# A finished gradient of a parameter is a gradient; one that autocast still has to make fp32, and
# that of a tied head, which waits for that of the embedding, are temporaries.

from coursekit.formulas.places import Places, live
from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import equal, maximum, minimum, where

_GPT = "counted from gpt.py"
_STEPS = "tests/where_the_memory_goes/test_step.py::test_random_steps"
_LEDGER = (
    "tests/where_the_memory_goes/test_timeline.py::test_categories_at_the_peak_of_random_steps"
)
formula = BOOK.section(source=_GPT, measured_by=_STEPS)


@formula(r"\beta_\text{new}", "bytes", source="torch.autograd")
def new_gradient_element_bytes(accumulation_steps, gradient_element_bytes):
    """bytes that an element of a finished gradient adds: none when the gradient is added to the
    gradient of earlier microbatches"""
    return where(accumulation_steps > 1, 0, gradient_element_bytes)


@formula(r"\beta_\text{cast}", "bytes", source="torch.autocast")
def cast_element_bytes(copies_weights, compute_element_bytes, gradient_element_bytes):
    """bytes of an element of a weight's gradient in both types together, while the gradient is
    converted to fp32"""
    return copies_weights * (compute_element_bytes + gradient_element_bytes)


@formula(r"W_\text{norm}", "bytes")
def norm_backward_bytes(
    residual_bytes,
    biases,
    hidden,
    gradient_element_bytes,
    residual_element_bytes,
    microbatch_tokens,
):
    """bytes at work in a norm's backward: gradients in and out; this book's RMSNorm computes with
    four fp32 tensors, five from 16 bits"""
    return residual_bytes + where(
        equal(biases, 1),
        residual_bytes + 2 * gradient_element_bytes * hidden,
        4 * hidden + 4 * microbatch_tokens * hidden * where(residual_element_bytes < 4, 5, 4),
    )


@formula(r"A_x", "bytes")
def first_product_bytes(
    norm_activation_bytes,
    linear_input_bytes,
    weight_copy_element_bytes,
    hidden,
    query_key_value_size,
):
    """bytes saved up to the product that makes queries, keys and values: norm, input, copy of the
    weight"""
    return (
        norm_activation_bytes
        + linear_input_bytes
        + weight_copy_element_bytes * hidden * query_key_value_size
    )


# --- forward, in unfused attention ----------------------------------------------------------------


@formula(r"A_\text{bias}", "bytes", source="torch.autocast")
def bias_copy_bytes(
    weight_copy_element_bytes, biases, layers, query_key_value_size, hidden, gated_mlp, feed_forward
):
    """bytes of autocast's copies of biases when forward is in the last attention; backward needs
    none, but autocast keeps them"""
    return (
        weight_copy_element_bytes
        * biases
        * (
            layers * query_key_value_size
            + (layers - 1) * (2 * hidden + (1 + gated_mlp) * feed_forward)
        )
    )


@formula(r"1_\text{move}", "count")
def moves_keys(microbatch, key_value_heads):
    """1 if unfused attention moves keys and values so that a group is one matrix, 0 if attention
    reads them in place"""
    return where(minimum(microbatch, key_value_heads) > 1, 1, 0)


@formula(r"U_q", "bytes")
def moved_query_bytes(
    query_copy_bytes,
    moves_keys,
    learned_positions,
    query_key_value_bytes,
    query_bytes,
    key_value_heads,
    heads,
):
    """bytes of queries and keys that nothing keeps: before they are rotated, and moved so that a
    group is one matrix"""
    return query_copy_bytes + where(
        equal(moves_keys, 1),
        (2 - learned_positions) * query_key_value_bytes + query_bytes,
        (1 - learned_positions) * (query_key_value_bytes + query_bytes)
        + where(key_value_heads < heads, query_bytes, 0),
    )


@formula(r"A_{qk}", "bytes", measured_by=_LEDGER)
def scored_bytes(query_bytes, moves_keys, learned_positions, query_key_value_bytes, key_bytes):
    """bytes the product of queries and keys saves: scaled queries, and keys; or the whole tensor
    that holds keys that were not moved"""
    return query_bytes + where(learned_positions > moves_keys, query_key_value_bytes, key_bytes)


@formula(r"A_{wv}", "bytes", measured_by=_LEDGER)
def weighted_bytes(score_dropout_bytes, moves_keys, learned_positions, key_bytes):
    """bytes that the product of scores and values saves besides the scores: the bytes that dropout
    keeps, and values that were moved"""
    return score_dropout_bytes + where(learned_positions > moves_keys, 0, key_bytes)


@formula(r"A_\text{softmax}", "bytes", measured_by=_LEDGER)
def attention_saved_bytes(first_product_bytes, rotation_bytes, scored_bytes, score_bytes):
    """activations of one layer's unfused attention when its softmax is done"""
    return first_product_bytes + rotation_bytes + scored_bytes + score_bytes


SCORES = Places(
    "scores", r"_\text{scores}", "in unfused attention, on the way forward", _GPT, _STEPS
)


@SCORES.place("softmax", symbol=r"_{qk}^\text{fwd}")
def softmax(
    attention_saved_bytes, score_bytes, moved_query_bytes, moves_keys, learned_positions, key_bytes
):
    """at the softmax: raw and masked scores beside its result"""
    return live(
        activations=attention_saved_bytes,
        temporaries=2 * score_bytes
        + moved_query_bytes
        + (1 - moves_keys) * (1 - learned_positions) * key_bytes,
    )


@SCORES.place("weighted", symbol=r"_{wv}^\text{fwd}")
def weighted(attention_saved_bytes, weighted_bytes, score_bytes, moved_query_bytes, query_bytes):
    """at the product with the values: its scores and its output"""
    return live(
        activations=attention_saved_bytes + weighted_bytes,
        temporaries=score_bytes + moved_query_bytes + query_bytes,
    )


SCORES.largest()


# --- backward, in the head ------------------------------------------------------------------------


@formula(r"G_\text{head}", "bytes", source="torch.autograd")
def head_gradient_bytes(
    vocabulary, hidden, tied_head, gradient_element_bytes, new_gradient_element_bytes
):
    """bytes the gradient of the head's weight holds while the layers go backward; a tied one waits
    for the embedding's"""
    return (
        vocabulary
        * hidden
        * where(equal(tied_head, 1), gradient_element_bytes, new_gradient_element_bytes)
    )


HEAD = Places("head_work", r"_\text{head}^\prime", "where the head needs most", _GPT, _LEDGER)


@HEAD.place("head_product", symbol=r"_{yW}")
def head_product(
    head_activation_bytes,
    linear_input_bytes,
    compute_element_bytes,
    vocabulary,
    microbatch_tokens,
    hidden,
):
    """in the head's product: the gradients of its input, of the logits and of the weight"""
    return live(
        activations=head_activation_bytes,
        temporaries=linear_input_bytes
        + compute_element_bytes * vocabulary * (microbatch_tokens + hidden),
    )


@HEAD.place("head_norm", symbol=r"_\text{last}")
def head_norm(norm_activation_bytes, tied_head, head_gradient_bytes, norm_backward_bytes):
    """in the last norm, with the gradient of the head's weight"""
    return live(
        activations=norm_activation_bytes,
        gradients=(1 - tied_head) * head_gradient_bytes,
        temporaries=tied_head * head_gradient_bytes + norm_backward_bytes,
    )


@HEAD.place("head_cast", symbol=r"_{yW}^\text{fp32}")
def head_cast(norm_activation_bytes, residual_bytes, cast_element_bytes, vocabulary, hidden):
    """while the gradient of the head's weight is converted to fp32"""
    return live(
        activations=norm_activation_bytes,
        temporaries=residual_bytes + cast_element_bytes * vocabulary * hidden,
    )


HEAD.largest()


# --- backward, in one layer: the MLP, then attention ----------------------------------------------


@formula(r"n_\text{up}", "count")
def mlp_done_parameters(gated_mlp, hidden, feed_forward, biases):
    """parameters of the MLP's products that are done when the backward of its first one begins"""
    return (1 + gated_mlp) * hidden * feed_forward + biases * (hidden + gated_mlp * feed_forward)


@formula(r"n_\text{mlp}", "count")
def mlp_side_parameters(mlp_parameters, norm_parameters):
    """parameters of the MLP and its norm, which are done when attention goes backward"""
    return mlp_parameters + norm_parameters


@formula(r"n_\text{out}", "count")
def attention_side_parameters(mlp_side_parameters, hidden, query_size, biases):
    """parameters that are done when attention's output product is done, its own included"""
    return mlp_side_parameters + hidden * (query_size + biases)


LAYER = Places("layer_work", r"_\ell^\prime", "in one layer, where it needs most", _GPT, _LEDGER)


@LAYER.place("mlp_down_cast", symbol=r"_\text{down}^\text{fp32}", when="copies_weights")
def mlp_down_cast(
    attention_activation_bytes,
    mlp_activation_bytes,
    mask_bytes,
    inner_bytes,
    weight_copy_element_bytes,
    hidden,
    feed_forward,
    biases,
    compute_element_bytes,
    gradient_element_bytes,
):
    """while the gradient of the MLP's second weight is converted to fp32"""
    return live(
        activations=attention_activation_bytes
        + (
            mlp_activation_bytes
            - (mask_bytes + inner_bytes + weight_copy_element_bytes * hidden * feed_forward)
        ),
        temporaries=biases * compute_element_bytes * hidden
        + inner_bytes
        + (weight_copy_element_bytes + gradient_element_bytes) * hidden * feed_forward,
    )


@LAYER.place("mlp_down", symbol=r"_\text{down}")
def mlp_down(
    attention_activation_bytes,
    mlp_activation_bytes,
    mask_bytes,
    biases,
    compute_element_bytes,
    hidden,
    feed_forward,
    inner_bytes,
    copies_weights,
    has_dropout,
    linear_input_bytes,
):
    """in the MLP's second product: its inner gradient and the weight's"""
    return live(
        activations=attention_activation_bytes + (mlp_activation_bytes - mask_bytes),
        temporaries=compute_element_bytes * hidden * (biases + feed_forward)
        + inner_bytes
        + maximum(copies_weights, has_dropout) * linear_input_bytes,
    )


@LAYER.place("mlp_gate", symbol=r"_\text{gate}", when="gated_mlp")
def mlp_gate(
    attention_activation_bytes,
    norm_activation_bytes,
    mlp_input_bytes,
    inner_bytes,
    weight_copy_element_bytes,
    new_gradient_element_bytes,
    hidden,
    feed_forward,
    biases,
):
    """in the product with the gate: three inner tensors saved, three gradients"""
    return live(
        activations=attention_activation_bytes
        + norm_activation_bytes
        + mlp_input_bytes
        + 3 * inner_bytes
        + 2 * weight_copy_element_bytes * hidden * feed_forward,
        gradients=new_gradient_element_bytes * hidden * (feed_forward + biases),
        temporaries=3 * inner_bytes,
    )


@LAYER.place("mlp_up_cast", symbol=r"_\text{up}^\text{fp32}")
def mlp_up_cast(
    attention_activation_bytes,
    norm_activation_bytes,
    new_gradient_element_bytes,
    mlp_done_parameters,
    biases,
    compute_element_bytes,
    feed_forward,
    cast_element_bytes,
    hidden,
    residual_bytes,
):
    """while the gradient of the MLP's first weight is converted to fp32"""
    return live(
        activations=attention_activation_bytes + norm_activation_bytes,
        gradients=new_gradient_element_bytes * mlp_done_parameters,
        temporaries=biases * compute_element_bytes * feed_forward
        + cast_element_bytes * hidden * feed_forward
        + residual_bytes,
    )


@LAYER.place("mlp_up", symbol=r"_\text{up}^\prime")
def mlp_up(
    attention_activation_bytes,
    norm_activation_bytes,
    linear_input_bytes,
    weight_copy_element_bytes,
    hidden,
    feed_forward,
    new_gradient_element_bytes,
    mlp_done_parameters,
    biases,
    compute_element_bytes,
    inner_bytes,
    gated_mlp,
    residual_bytes,
):
    """in the MLP's first product; with a gate, the gate's"""
    return live(
        activations=attention_activation_bytes
        + norm_activation_bytes
        + linear_input_bytes
        + weight_copy_element_bytes * hidden * feed_forward,
        gradients=new_gradient_element_bytes * mlp_done_parameters,
        temporaries=compute_element_bytes * feed_forward * (biases + hidden)
        + linear_input_bytes
        + inner_bytes
        + gated_mlp * residual_bytes,
    )


@LAYER.place("mlp_norm", symbol=r"_\text{norm}^\text{mlp}")
def mlp_norm(
    attention_activation_bytes,
    norm_activation_bytes,
    new_gradient_element_bytes,
    mlp_parameters,
    norm_backward_bytes,
):
    """in the norm before the MLP, whose products are done"""
    return live(
        activations=attention_activation_bytes + norm_activation_bytes,
        gradients=new_gradient_element_bytes * mlp_parameters,
        temporaries=norm_backward_bytes,
    )


@LAYER.place("attention_core", symbol=r"_\text{core}^\prime")
def between_products(
    first_product_bytes,
    attention_core_bytes,
    keeps_scores,
    query_bytes,
    new_gradient_element_bytes,
    attention_side_parameters,
    key_bytes,
    score_bytes,
    has_dropout,
    keeps_whole_product,
    query_key_value_bytes,
):
    """between attention's products: the gradients of queries, keys and values, or of the scores.
    Fused attention's kernel saves its output too"""
    return live(
        activations=first_product_bytes + attention_core_bytes + (1 - keeps_scores) * query_bytes,
        gradients=new_gradient_element_bytes * attention_side_parameters,
        temporaries=where(
            equal(keeps_scores, 1),
            maximum(
                query_bytes + key_bytes + score_bytes,
                (1 - has_dropout) * (2 * score_bytes + keeps_whole_product * key_bytes),
            ),
            query_bytes + query_key_value_bytes,
        ),
    )


@LAYER.place("first_product", symbol=r"_{xW}")
def first_product(
    first_product_bytes,
    new_gradient_element_bytes,
    attention_side_parameters,
    compute_element_bytes,
    query_key_value_size,
    biases,
    hidden,
    linear_input_bytes,
    query_key_value_bytes,
):
    """in the product that makes queries, keys and values"""
    return live(
        activations=first_product_bytes,
        gradients=new_gradient_element_bytes * attention_side_parameters,
        temporaries=compute_element_bytes * query_key_value_size * (biases + hidden)
        + linear_input_bytes
        + query_key_value_bytes,
    )


@LAYER.place("attention_norm", symbol=r"_\text{norm}^\text{attn}")
def attention_norm(
    norm_activation_bytes,
    new_gradient_element_bytes,
    mlp_side_parameters,
    attention_parameters,
    norm_backward_bytes,
):
    """in the norm before attention, whose products are done"""
    return live(
        activations=norm_activation_bytes,
        gradients=new_gradient_element_bytes * (mlp_side_parameters + attention_parameters),
        temporaries=norm_backward_bytes,
    )


@LAYER.place("first_cast", symbol=r"_{xW}^\text{fp32}")
def first_cast(
    norm_activation_bytes,
    new_gradient_element_bytes,
    attention_side_parameters,
    query_key_value_size,
    biases,
    compute_element_bytes,
    cast_element_bytes,
    hidden,
    residual_bytes,
):
    """while the gradient of the weight of queries, keys and values is converted to fp32"""
    return live(
        activations=norm_activation_bytes,
        gradients=new_gradient_element_bytes * attention_side_parameters,
        temporaries=query_key_value_size
        * (biases * compute_element_bytes + cast_element_bytes * hidden)
        + residual_bytes,
    )


LAYER.largest()


# --- backward, of all layers but one --------------------------------------------------------------

OTHERS = Places(
    "other_layers",
    r"_\text{rest}",
    "of all layers but one: the larger of kept activations and gradients decides whether the peak"
    " is in the last layer, with which backward begins, or in the first",
    "definition",
    _LEDGER,
)


@OTHERS.place("first_layer", symbol=r"_\text{first}")
def first_layer(layers, new_gradient_element_bytes, layer_parameters):
    """of the other layers when backward is in the first"""
    return live(gradients=(layers - 1) * new_gradient_element_bytes * layer_parameters)


@OTHERS.place("last_layer", symbol=r"_\text{deep}")
def last_layer(layers, layer_activation_bytes):
    """of the other layers when backward is in the last"""
    return live(activations=(layers - 1) * layer_activation_bytes)


OTHERS.largest()
