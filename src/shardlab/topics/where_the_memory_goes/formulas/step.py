"""A training step: six moments, each with every byte that is live then, and their maximum, the
peak. The formulas are for the last microbatch of a step. Moments that stay within a percent of
another are left out.
"""

# The story: 1 forward, in the attention of the last layer, with the activations of all others; only
# unfused attention is so large. 2 loss: back through the softmax over the vocabulary, with
# everything saved and two more tensors of the size of the logits. 3 head: the gradients of the
# logits and of a weight as large as the vocabulary. 4 layers: each turns its activations into
# gradients. 5 embedding: a gradient for the whole table, however few of its rows were used; a tied
# table gets two and adds them. 6 optimizer: all gradients, all states, and what the update needs
# beside them.

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import equal, maximum, where

_GPT = "counted from gpt.py"
_STEPS = "tests/where_the_memory_goes/test_step.py::test_random_steps"
_NOTED = "tests/where_the_memory_goes/test_step.py::test_steps_on_record"

# peak_moment counts them from 1
MOMENTS = ("forward", "loss", "head", "layers", "embedding", "optimizer")


@BOOK.formula(symbol=r"B_\text{floor}", unit="bytes", source="definition", measured_by=_STEPS)
def step_floor_bytes(
    parameter_bytes,
    first_step,
    optimizer_bytes,
    step_counter_bytes,
    accumulation_steps,
    gradient_bytes,
    batch_bytes,
):
    """bytes that live through forward and backward: parameters, batch, optimizer states, gradients
    of earlier microbatches"""
    return (
        parameter_bytes
        + (1 - first_step) * (optimizer_bytes + step_counter_bytes)
        + where(accumulation_steps > 1, gradient_bytes, 0)
        + batch_bytes
    )


@BOOK.formula(symbol=r"B_\text{back}", unit="bytes", source=_GPT, measured_by=_STEPS)
def backward_floor_bytes(step_floor_bytes, mask_bytes):
    """bytes that live through backward: the loss and its gradient (4 each) and the mask after the
    embedding come on top"""
    return step_floor_bytes + mask_bytes + 8


@BOOK.formula(symbol=r"B_1", unit="bytes", source=_GPT, measured_by=_STEPS)
def forward_peak_bytes(
    keeps_scores,
    step_floor_bytes,
    accumulation_steps,
    mask_bytes,
    layers,
    layer_activation_bytes,
    bias_copy_bytes,
    attention_forward_bytes,
):
    """bytes in the last layer's unfused attention; 0 for fused, where another moment is larger. An
    earlier loss (4) is still there"""
    return keeps_scores * (
        step_floor_bytes
        + where(accumulation_steps > 1, 4, 0)
        + mask_bytes
        + (layers - 1) * layer_activation_bytes
        + bias_copy_bytes
        + attention_forward_bytes
    )


@BOOK.formula(symbol=r"B_2", unit="bytes", source=_GPT, measured_by=_NOTED)
def loss_peak_bytes(
    backward_floor_bytes, layers, layer_activation_bytes, head_activation_bytes, logit_bytes
):
    """bytes in the backward of the log-softmax: everything saved, and with the saved log-softmax
    two gradients of its size"""
    return (
        backward_floor_bytes
        + layers * layer_activation_bytes
        + head_activation_bytes
        + 3 * logit_bytes
    )


@BOOK.formula(symbol=r"B_3", unit="bytes", source=_GPT, measured_by=_STEPS)
def head_peak_bytes(backward_floor_bytes, layers, layer_activation_bytes, head_backward_bytes):
    """bytes while the head goes backward, with the activations of all layers"""
    return backward_floor_bytes + layers * layer_activation_bytes + head_backward_bytes


@BOOK.formula(symbol=r"B_\text{rest}", unit="bytes", source="definition", measured_by=_STEPS)
def other_layers_bytes(
    layers, layer_activation_bytes, new_gradient_element_bytes, layer_parameters
):
    """bytes of all layers but one: activations before they go backward, gradients after; of which
    there is more decides where the peak is, in the last layer, with which backward begins, or in
    the first"""
    return (layers - 1) * maximum(
        layer_activation_bytes, new_gradient_element_bytes * layer_parameters
    )


@BOOK.formula(symbol=r"B_4", unit="bytes", source=_GPT, measured_by=_STEPS)
def layers_peak_bytes(
    backward_floor_bytes,
    head_gradient_bytes,
    other_layers_bytes,
    residual_bytes,
    attention_activation_bytes,
    mlp_backward_bytes,
    new_gradient_element_bytes,
    mlp_parameters,
    norm_parameters,
    attention_backward_bytes,
):
    """bytes while a layer goes backward: its MLP, with attention's activations there, or its
    attention, with the MLP's gradients"""
    return (
        backward_floor_bytes
        + head_gradient_bytes
        + new_gradient_element_bytes * norm_parameters
        + other_layers_bytes
        + residual_bytes
        + maximum(
            attention_activation_bytes + mlp_backward_bytes,
            new_gradient_element_bytes * (mlp_parameters + norm_parameters)
            + attention_backward_bytes,
        )
    )


@BOOK.formula(symbol=r"B_5", unit="bytes", source=_GPT, measured_by=_STEPS)
def embedding_peak_bytes(
    step_floor_bytes,
    new_gradient_element_bytes,
    parameters,
    vocabulary,
    hidden,
    gradient_element_bytes,
    tied_head,
    residual_bytes,
):
    """bytes when the token table gets its gradient; a tied one then holds two and their sum"""
    return (
        step_floor_bytes
        + 8
        + new_gradient_element_bytes * (parameters - vocabulary * hidden)
        + gradient_element_bytes * vocabulary * hidden
        + maximum(
            tied_head * gradient_element_bytes * vocabulary * hidden + residual_bytes,
            2 * tied_head * gradient_element_bytes * vocabulary * hidden,
        )
    )


@BOOK.formula(
    symbol=r"n_\text{loop}",
    unit="count",
    source="torch.optim.adamw, _single_tensor_adamw",
    measured_by=_STEPS,
)
def optimizer_loop_elements(
    learned_positions,
    max_sequence,
    vocabulary,
    hidden,
    tied_head,
    query_key_value_size,
    biases,
    feed_forward,
):
    """elements beside the states in Adam's loop: a square root and a quotient of this tensor, and
    the quotient of the one before"""
    return maximum(
        2 * learned_positions * max_sequence * hidden,
        learned_positions * max_sequence * hidden + 2 * vocabulary * hidden,
        (1 - tied_head) * (hidden + 2 * vocabulary * hidden),
        hidden + 2 * hidden * query_key_value_size,
        (1 - biases) * hidden * (query_key_value_size + 2 * hidden),
        2 * hidden * feed_forward
        + where(equal(biases, 1), maximum(hidden, feed_forward), hidden * feed_forward),
    )


@BOOK.formula(symbol=r"M_\text{temp}", unit="bytes", source="torch.optim.adamw", measured_by=_STEPS)
def optimizer_temporary_bytes(
    optimizer_moments, moment_element_bytes, optimizer_mode, optimizer_loop_elements, parameters
):
    """bytes the update needs beside the states: Adam's square roots, of a tensor or two in the
    loop, of all tensors with foreach"""
    return moment_element_bytes * where(
        optimizer_moments > 1,
        where(
            equal(optimizer_mode, 0),
            optimizer_loop_elements,
            where(equal(optimizer_mode, 1), parameters, 0),
        ),
        0,
    )


@BOOK.formula(symbol=r"B_6", unit="bytes", source="definition", measured_by=_STEPS)
def optimizer_peak_bytes(states_bytes, step_counter_bytes, optimizer_temporary_bytes, batch_bytes):
    """bytes in the optimizer's step; batch and loss still have a name in the training loop"""
    return states_bytes + step_counter_bytes + optimizer_temporary_bytes + batch_bytes + 4


@BOOK.formula(symbol=r"B_\text{peak}", unit="bytes", source="definition", measured_by=_STEPS)
def peak_bytes(
    forward_peak_bytes,
    loss_peak_bytes,
    head_peak_bytes,
    layers_peak_bytes,
    embedding_peak_bytes,
    optimizer_peak_bytes,
):
    """bytes the step needs: the most that is live at once"""
    return maximum(
        forward_peak_bytes,
        loss_peak_bytes,
        head_peak_bytes,
        layers_peak_bytes,
        embedding_peak_bytes,
        optimizer_peak_bytes,
    )


@BOOK.formula(symbol=r"i_\text{peak}", unit="count", source="definition", measured_by=_STEPS)
def peak_moment(
    peak_bytes,
    forward_peak_bytes,
    loss_peak_bytes,
    head_peak_bytes,
    layers_peak_bytes,
    embedding_peak_bytes,
):
    """which moment it is: 1 forward, 2 loss, 3 head, 4 layers, 5 embedding, 6 optimizer"""
    return where(
        equal(peak_bytes, forward_peak_bytes),
        1,
        where(
            equal(peak_bytes, loss_peak_bytes),
            2,
            where(
                equal(peak_bytes, head_peak_bytes),
                3,
                where(
                    equal(peak_bytes, layers_peak_bytes),
                    4,
                    where(equal(peak_bytes, embedding_peak_bytes), 5, 6),
                ),
            ),
        ),
    )
