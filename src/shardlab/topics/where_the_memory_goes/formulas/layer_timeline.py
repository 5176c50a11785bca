"""Inside a layer's backward: where it needs most, which bytes are activations still saved and which
are finished gradients. What is neither is a temporary.
"""

# The working sets of working_sets.py are maxima over places: the MLP's second product, its gate,
# its first product, its norm; between attention's products, its first product, its norm. Which
# place it is decides what is still saved and what is finished. Under autocast each product is two
# places: with its input and its weight's copy, or without them, while the weight's gradient is made
# fp32.

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import equal, where

_GPT = "counted from gpt.py"
_LEDGER = (
    "tests/where_the_memory_goes/test_timeline.py::test_categories_at_the_peak_of_random_steps"
)


@BOOK.formula(symbol=r"A_\text{down}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_down_bytes(
    mlp_down_backward_bytes,
    mlp_down_cast_bytes,
    mlp_activation_bytes,
    mask_bytes,
    copies_weights,
    inner_bytes,
    weight_copy_element_bytes,
    hidden,
    feed_forward,
):
    """activations of the MLP at its second product, or without that product's own while its
    weight's gradient is made fp32"""
    return mlp_activation_bytes - (
        mask_bytes
        + copies_weights
        * where(
            equal(mlp_down_backward_bytes, mlp_down_cast_bytes),
            inner_bytes + weight_copy_element_bytes * hidden * feed_forward,
            0,
        )
    )


@BOOK.formula(symbol=r"A_\text{end}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_up_bytes(
    mlp_up_backward_bytes,
    mlp_up_cast_bytes,
    norm_activation_bytes,
    linear_input_bytes,
    weight_copy_element_bytes,
    hidden,
    feed_forward,
):
    """activations of the MLP at its first product, or its norm's alone while that weight's gradient
    is made fp32"""
    return norm_activation_bytes + where(
        equal(mlp_up_backward_bytes, mlp_up_cast_bytes),
        0,
        linear_input_bytes + weight_copy_element_bytes * hidden * feed_forward,
    )


@BOOK.formula(symbol=r"A_\text{mlp}^\prime", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_mlp_bytes(
    mlp_backward_bytes,
    mlp_down_backward_bytes,
    mlp_gate_backward_bytes,
    mlp_up_backward_bytes,
    attention_activation_bytes,
    activations_at_down_bytes,
    activations_at_up_bytes,
    norm_activation_bytes,
    mlp_input_bytes,
    inner_bytes,
    weight_copy_element_bytes,
    hidden,
    feed_forward,
):
    """activations of one layer where its MLP needs most: at the second product, at the gate, at the
    first product, or at the norm"""
    return attention_activation_bytes + where(
        equal(mlp_backward_bytes, mlp_down_backward_bytes),
        activations_at_down_bytes,
        where(
            equal(mlp_backward_bytes, mlp_gate_backward_bytes),
            norm_activation_bytes
            + mlp_input_bytes
            + 3 * inner_bytes
            + 2 * weight_copy_element_bytes * hidden * feed_forward,
            where(
                equal(mlp_backward_bytes, mlp_up_backward_bytes),
                activations_at_up_bytes,
                norm_activation_bytes,
            ),
        ),
    )


@BOOK.formula(symbol=r"G_\text{mlp}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def gradients_at_mlp_bytes(
    mlp_backward_bytes,
    mlp_down_backward_bytes,
    mlp_gate_backward_bytes,
    mlp_up_backward_bytes,
    new_gradient_element_bytes,
    hidden,
    feed_forward,
    biases,
    mlp_done_parameters,
    mlp_parameters,
):
    """gradients of one layer where its MLP needs most: of the products that are done"""
    return new_gradient_element_bytes * where(
        equal(mlp_backward_bytes, mlp_down_backward_bytes),
        0,
        where(
            equal(mlp_backward_bytes, mlp_gate_backward_bytes),
            hidden * (feed_forward + biases),
            where(
                equal(mlp_backward_bytes, mlp_up_backward_bytes),
                mlp_done_parameters,
                mlp_parameters,
            ),
        ),
    )


@BOOK.formula(symbol=r"A_\text{core}^\prime", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_core_bytes(keeps_scores, attention_core_bytes, linear_input_bytes):
    """activations between attention's products: the core; and fused attention's output, which its
    kernel saves too"""
    return attention_core_bytes + (1 - keeps_scores) * linear_input_bytes


@BOOK.formula(symbol=r"A_\text{attn}^\prime", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_in_attention_bytes(
    attention_backward_bytes,
    new_gradient_element_bytes,
    attention_done_parameters,
    core_backward_bytes,
    query_key_value_product_bytes,
    norm_activation_bytes,
    linear_input_bytes,
    weight_copy_element_bytes,
    hidden,
    query_key_value_size,
    activations_at_core_bytes,
):
    """activations of one layer where its attention needs most: between the products, at the first
    product, or of its norm alone"""
    return norm_activation_bytes + where(
        equal(
            attention_backward_bytes,
            new_gradient_element_bytes * attention_done_parameters + core_backward_bytes,
        ),
        linear_input_bytes
        + weight_copy_element_bytes * hidden * query_key_value_size
        + activations_at_core_bytes,
        where(
            equal(
                attention_backward_bytes,
                new_gradient_element_bytes * attention_done_parameters
                + query_key_value_product_bytes,
            ),
            linear_input_bytes + weight_copy_element_bytes * hidden * query_key_value_size,
            0,
        ),
    )


@BOOK.formula(symbol=r"G_\text{attn}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def gradients_in_attention_bytes(
    attention_backward_bytes,
    attention_norm_bytes,
    new_gradient_element_bytes,
    attention_parameters,
    attention_done_parameters,
    mlp_parameters,
    norm_parameters,
):
    """gradients of one layer where its attention needs most: of the MLP, and of the output's
    product, or of both products"""
    return new_gradient_element_bytes * (
        mlp_parameters
        + norm_parameters
        + where(
            equal(attention_backward_bytes, attention_norm_bytes),
            attention_parameters,
            attention_done_parameters,
        )
    )


@BOOK.formula(symbol=r"1_\text{mlp}", unit="count", source=_GPT, measured_by=_LEDGER)
def mlp_needs_most(
    attention_activation_bytes,
    mlp_backward_bytes,
    new_gradient_element_bytes,
    mlp_parameters,
    norm_parameters,
    attention_backward_bytes,
):
    """1 if a layer's backward needs most in its MLP, 0 if in its attention"""
    return where(
        attention_activation_bytes + mlp_backward_bytes
        >= new_gradient_element_bytes * (mlp_parameters + norm_parameters)
        + attention_backward_bytes,
        1,
        0,
    )
