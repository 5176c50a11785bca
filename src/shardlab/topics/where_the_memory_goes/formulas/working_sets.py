"""Working sets: what is live in the head, or in one layer, while it is at work. What was saved for
it and is still there, the gradients it makes, and tensors that come and go; only those of its
moments that can be the peak of a step.
"""

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import equal, maximum, minimum, where

_GPT = "counted from gpt.py"
_STEPS = "tests/where_the_memory_goes/test_step.py::test_random_steps"

# A product y = x W goes backward in this order: the gradients of x and W are made while x and y's
# gradient are there, and under autocast W's 16-bit copy. Under autocast those two are then made
# fp32, one after the other, while the weight's 16-bit gradient is still there: for a short sequence
# and a large weight that is the larger moment.


@BOOK.formula(symbol=r"\beta_\text{new}", unit="bytes", source="torch.autograd", measured_by=_STEPS)
def new_gradient_element_bytes(accumulation_steps, gradient_element_bytes):
    """bytes an element of a finished gradient adds: none when it is added to the gradient of
    earlier microbatches"""
    return where(accumulation_steps > 1, 0, gradient_element_bytes)


@BOOK.formula(symbol=r"W_\text{norm}", unit="bytes", source=_GPT, measured_by=_STEPS)
def norm_backward_bytes(
    residual_bytes,
    biases,
    hidden,
    gradient_element_bytes,
    residual_element_bytes,
    microbatch_tokens,
):
    """bytes at work in a norm's backward: gradients in and out; our RMSNorm computes with four fp32
    tensors, five from 16 bits"""
    return residual_bytes + where(
        equal(biases, 1),
        residual_bytes + 2 * gradient_element_bytes * hidden,
        4 * hidden + 4 * microbatch_tokens * hidden * where(residual_element_bytes < 4, 5, 4),
    )


# --- forward, in unfused attention ----------------------------------------------------------------


@BOOK.formula(symbol=r"A_\text{bias}", unit="bytes", source="torch.autocast", measured_by=_STEPS)
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


@BOOK.formula(symbol=r"W_q", unit="bytes", source=_GPT, measured_by=_STEPS)
def query_forward_bytes(
    query_key_value_bytes,
    learned_positions,
    query_copy_bytes,
    linear_input_bytes,
    key_bytes,
    microbatch,
    key_value_heads,
    heads,
):
    """bytes of queries and keys in unfused forward: as they come, rotated, scaled, and moved so
    that a group is one matrix"""
    return (
        (2 - learned_positions) * query_key_value_bytes
        + query_copy_bytes
        + linear_input_bytes
        + where(
            minimum(microbatch, key_value_heads) > 1,
            linear_input_bytes + key_bytes,
            where(key_value_heads < heads, linear_input_bytes, 0),
        )
    )


@BOOK.formula(symbol=r"W_\text{softmax}", unit="bytes", source=_GPT, measured_by=_STEPS)
def score_softmax_bytes(compute_element_bytes, sequence, score_bytes):
    """bytes of scores at the softmax: raw, masked and after it; and the causal mask"""
    return compute_element_bytes * sequence * sequence + 3 * score_bytes


@BOOK.formula(symbol=r"W_\text{scores}", unit="bytes", source=_GPT, measured_by=_STEPS)
def score_forward_bytes(
    score_softmax_bytes,
    score_bytes,
    score_dropout_bytes,
    linear_input_bytes,
    key_bytes,
    microbatch,
    key_value_heads,
    sequence,
    compute_element_bytes,
):
    """bytes of scores in unfused forward: at the softmax; or two of them, dropout and the product
    with the values"""
    return maximum(
        score_softmax_bytes,
        compute_element_bytes * sequence * sequence
        + 2 * score_bytes
        + score_dropout_bytes
        + linear_input_bytes
        + where(minimum(microbatch, key_value_heads) > 1, key_bytes, 0),
    )


@BOOK.formula(symbol=r"W_\text{fwd}", unit="bytes", source=_GPT, measured_by=_STEPS)
def attention_forward_bytes(
    norm_activation_bytes,
    linear_input_bytes,
    copies_weights,
    residual_bytes,
    weight_copy_element_bytes,
    hidden,
    query_key_value_size,
    rotation_bytes,
    query_forward_bytes,
    score_forward_bytes,
):
    """bytes at work in unfused attention: norm, its output (under autocast in both types), queries
    and keys, scores"""
    return (
        norm_activation_bytes
        + linear_input_bytes
        + copies_weights * residual_bytes
        + weight_copy_element_bytes * hidden * query_key_value_size
        + rotation_bytes
        + query_forward_bytes
        + score_forward_bytes
    )


# --- backward, in the head ------------------------------------------------------------------------


@BOOK.formula(symbol=r"W_{yW}", unit="bytes", source=_GPT, measured_by=_STEPS)
def head_product_bytes(
    head_activation_bytes,
    linear_input_bytes,
    compute_element_bytes,
    vocabulary,
    microbatch_tokens,
    hidden,
):
    """bytes at work in the head's product: with what it saved, the gradients of its input, of the
    logits and of the weight"""
    return (
        head_activation_bytes
        + linear_input_bytes
        + compute_element_bytes * vocabulary * (microbatch_tokens + hidden)
    )


@BOOK.formula(symbol=r"W_\text{last}", unit="bytes", source=_GPT, measured_by=_STEPS)
def head_norm_bytes(norm_activation_bytes, head_gradient_bytes, norm_backward_bytes):
    """bytes at work in the last norm, with the gradient of the head's weight"""
    return norm_activation_bytes + head_gradient_bytes + norm_backward_bytes


@BOOK.formula(symbol=r"W_\text{head}", unit="bytes", source=_GPT, measured_by=_STEPS)
def head_backward_bytes(
    head_product_bytes,
    norm_activation_bytes,
    residual_bytes,
    copies_weights,
    compute_element_bytes,
    gradient_element_bytes,
    vocabulary,
    hidden,
    head_norm_bytes,
):
    """bytes at work in the head: in its product, or while the weight's gradient is made fp32, or in
    the last norm"""
    return maximum(
        head_product_bytes,
        norm_activation_bytes
        + residual_bytes
        + copies_weights * (compute_element_bytes + gradient_element_bytes) * vocabulary * hidden,
        head_norm_bytes,
    )


@BOOK.formula(symbol=r"G_\text{head}", unit="bytes", source="torch.autograd", measured_by=_STEPS)
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


# --- backward, in one layer: the MLP, then attention ----------------------------------------------


@BOOK.formula(symbol=r"S_\text{down}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_down_floor_bytes(mlp_activation_bytes, mask_bytes, biases, compute_element_bytes, hidden):
    """bytes there all through the backward of the MLP's second product: what the MLP saved, the
    gradient of its bias"""
    return mlp_activation_bytes - mask_bytes + biases * compute_element_bytes * hidden


@BOOK.formula(symbol=r"W_\text{down}^\text{fp32}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_down_cast_bytes(
    mlp_down_floor_bytes, copies_weights, gradient_element_bytes, hidden, feed_forward
):
    """bytes while the gradient of the MLP's second weight is made fp32"""
    return mlp_down_floor_bytes + copies_weights * gradient_element_bytes * hidden * feed_forward


@BOOK.formula(symbol=r"W_\text{down}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_down_backward_bytes(
    mlp_down_floor_bytes,
    compute_element_bytes,
    hidden,
    feed_forward,
    inner_bytes,
    copies_weights,
    has_dropout,
    linear_input_bytes,
    mlp_down_cast_bytes,
):
    """bytes at work in the MLP's second product: its inner gradient and the weight's, or the
    weight's while it is made fp32"""
    return maximum(
        mlp_down_floor_bytes
        + compute_element_bytes * hidden * feed_forward
        + inner_bytes
        + maximum(copies_weights, has_dropout) * linear_input_bytes,
        mlp_down_cast_bytes,
    )


@BOOK.formula(symbol=r"W_\text{gate}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_gate_backward_bytes(
    gated_mlp,
    norm_activation_bytes,
    mlp_input_bytes,
    inner_bytes,
    weight_copy_element_bytes,
    new_gradient_element_bytes,
    hidden,
    feed_forward,
    biases,
):
    """bytes at work in the product with the gate: three inner tensors saved, three gradients"""
    return gated_mlp * (
        norm_activation_bytes
        + mlp_input_bytes
        + 6 * inner_bytes
        + 2 * weight_copy_element_bytes * hidden * feed_forward
        + new_gradient_element_bytes * hidden * (feed_forward + biases)
    )


@BOOK.formula(symbol=r"n_\text{up}", unit="count", source=_GPT, measured_by=_STEPS)
def mlp_done_parameters(gated_mlp, hidden, feed_forward, biases):
    """parameters of the MLP's products that are done when the backward of its first one begins"""
    return (1 + gated_mlp) * hidden * feed_forward + biases * (hidden + gated_mlp * feed_forward)


@BOOK.formula(symbol=r"S_\text{up}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_up_floor_bytes(
    norm_activation_bytes,
    biases,
    compute_element_bytes,
    feed_forward,
    new_gradient_element_bytes,
    mlp_done_parameters,
):
    """bytes there all through the backward of the MLP's first product: what the norm saved,
    gradients of biases and of what is done"""
    return (
        norm_activation_bytes
        + biases * compute_element_bytes * feed_forward
        + new_gradient_element_bytes * mlp_done_parameters
    )


@BOOK.formula(symbol=r"W_\text{up}^\text{fp32}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_up_cast_bytes(
    mlp_up_floor_bytes,
    copies_weights,
    compute_element_bytes,
    gradient_element_bytes,
    hidden,
    feed_forward,
    residual_bytes,
):
    """bytes while the gradient of the MLP's first weight is made fp32"""
    return (
        mlp_up_floor_bytes
        + copies_weights * (compute_element_bytes + gradient_element_bytes) * hidden * feed_forward
        + residual_bytes
    )


@BOOK.formula(symbol=r"W_\text{up}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_up_backward_bytes(
    mlp_up_floor_bytes,
    weight_copy_element_bytes,
    compute_element_bytes,
    hidden,
    feed_forward,
    linear_input_bytes,
    inner_bytes,
    gated_mlp,
    residual_bytes,
    mlp_up_cast_bytes,
):
    """bytes at work in the MLP's first product (with a gate, the gate's), or while its weight's
    gradient is made fp32"""
    return maximum(
        mlp_up_floor_bytes
        + (weight_copy_element_bytes + compute_element_bytes) * hidden * feed_forward
        + 2 * linear_input_bytes
        + inner_bytes
        + gated_mlp * residual_bytes,
        mlp_up_cast_bytes,
    )


@BOOK.formula(symbol=r"W_\text{mlp}", unit="bytes", source=_GPT, measured_by=_STEPS)
def mlp_backward_bytes(
    mlp_down_backward_bytes,
    mlp_gate_backward_bytes,
    mlp_up_backward_bytes,
    norm_activation_bytes,
    norm_backward_bytes,
    new_gradient_element_bytes,
    mlp_parameters,
):
    """bytes at work in the MLP: at the second product, at the gate, at the first product, at the
    norm"""
    return maximum(
        mlp_down_backward_bytes,
        mlp_gate_backward_bytes,
        mlp_up_backward_bytes,
        norm_activation_bytes + norm_backward_bytes + new_gradient_element_bytes * mlp_parameters,
    )


@BOOK.formula(symbol=r"W_\text{core}", unit="bytes", source=_GPT, measured_by=_STEPS)
def core_backward_bytes(
    keeps_scores,
    linear_input_bytes,
    query_key_value_bytes,
    key_bytes,
    score_bytes,
    has_dropout,
    keeps_whole_product,
    attention_core_bytes,
    norm_activation_bytes,
    weight_copy_element_bytes,
    hidden,
    query_key_value_size,
):
    """bytes at work between attention's products: the gradients of queries, keys and values, or of
    the scores"""
    return (
        norm_activation_bytes
        + linear_input_bytes
        + weight_copy_element_bytes * hidden * query_key_value_size
        + attention_core_bytes
        + where(
            equal(keeps_scores, 1),
            maximum(
                linear_input_bytes + key_bytes + score_bytes,
                (1 - has_dropout) * (2 * score_bytes + keeps_whole_product * key_bytes),
            ),
            2 * linear_input_bytes + query_key_value_bytes,
        )
    )


@BOOK.formula(symbol=r"W_{xW}", unit="bytes", source=_GPT, measured_by=_STEPS)
def query_key_value_product_bytes(
    norm_activation_bytes,
    biases,
    compute_element_bytes,
    query_key_value_size,
    weight_copy_element_bytes,
    hidden,
    linear_input_bytes,
    query_key_value_bytes,
):
    """bytes at work in the product that makes queries, keys and values, with what it saved"""
    return (
        norm_activation_bytes
        + biases * compute_element_bytes * query_key_value_size
        + (weight_copy_element_bytes + compute_element_bytes) * hidden * query_key_value_size
        + 2 * linear_input_bytes
        + query_key_value_bytes
    )


@BOOK.formula(symbol=r"W_\text{qkv}", unit="bytes", source=_GPT, measured_by=_STEPS)
def query_key_value_backward_bytes(
    query_key_value_product_bytes,
    norm_activation_bytes,
    biases,
    compute_element_bytes,
    query_key_value_size,
    copies_weights,
    gradient_element_bytes,
    hidden,
    residual_bytes,
):
    """bytes at work in the product that makes queries, keys and values, or while its weight's
    gradient is made fp32"""
    return maximum(
        query_key_value_product_bytes,
        norm_activation_bytes
        + biases * compute_element_bytes * query_key_value_size
        + copies_weights
        * (compute_element_bytes + gradient_element_bytes)
        * hidden
        * query_key_value_size
        + residual_bytes,
    )


@BOOK.formula(symbol=r"W_\text{norm}^\text{attn}", unit="bytes", source=_GPT, measured_by=_STEPS)
def attention_norm_bytes(
    norm_activation_bytes, norm_backward_bytes, new_gradient_element_bytes, attention_parameters
):
    """bytes at work in the norm before attention, whose products are done"""
    return (
        norm_activation_bytes
        + norm_backward_bytes
        + new_gradient_element_bytes * attention_parameters
    )


@BOOK.formula(symbol=r"n_\text{out}", unit="count", source=_GPT, measured_by=_STEPS)
def attention_done_parameters(hidden, biases):
    """parameters of attention's output product, which goes backward first"""
    return hidden * (hidden + biases)


@BOOK.formula(symbol=r"W_\text{attn}", unit="bytes", source=_GPT, measured_by=_STEPS)
def attention_backward_bytes(
    new_gradient_element_bytes,
    attention_done_parameters,
    core_backward_bytes,
    query_key_value_backward_bytes,
    attention_norm_bytes,
):
    """bytes at work in attention: between its products, at the first product, at the norm"""
    return maximum(
        new_gradient_element_bytes * attention_done_parameters
        + maximum(core_backward_bytes, query_key_value_backward_bytes),
        attention_norm_bytes,
    )
