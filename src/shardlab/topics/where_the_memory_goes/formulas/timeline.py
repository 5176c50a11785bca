"""The step as a timeline: at each of its moments the bytes by category. Together they are that
moment's bytes, to the byte. The peak is the tallest of them.
"""

# Six moments are those of step.py, whose first is called `attention` here. Two more are there to be
# looked at, not because they can be the peak: the start, when nothing is saved yet, and the end of
# forward, when everything is. Categories are the byte ledger's: a tensor is a temporary until
# autograd saves it (an activation) or adds it to a parameter's gradient. So the gradient of a tied
# head, which waits for that of the embedding, and a 16-bit gradient that autocast still has to make
# fp32, are temporaries.
#
# Temporaries are what is left: the moment's bytes less all that lasts.

from typing import NamedTuple

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import equal, maximum, minimum, where

_GPT = "counted from gpt.py"
_LEDGER = (
    "tests/where_the_memory_goes/test_timeline.py::test_categories_at_the_peak_of_random_steps"
)
_DEFINITION = "definition"


class StepMoment(NamedTuple):
    """A moment of the step: its phase, the quantity of all its bytes, and a quantity for each
    category, "" where there are none."""

    name: str
    phase: str
    total: str
    optimizer: str
    gradients: str
    activations: str
    temporaries: str
    parameters: str = "parameter_bytes"

    def categories(self):
        """Category -> quantity, under the names of the memory palette, in the order in which they
        are stacked."""
        named = {
            name: getattr(self, name)
            for name in ("parameters", "optimizer", "gradients", "activations", "temporaries")
        }
        return {name: quantity for name, quantity in named.items() if quantity}


STEP_TIMELINE = (
    StepMoment(
        "start",
        "forward",
        "step_floor_bytes",
        "standing_optimizer_bytes",
        "earlier_gradient_bytes",
        "",
        "batch_bytes",
    ),
    StepMoment(
        "attention",
        "forward",
        "forward_peak_bytes",
        "standing_optimizer_bytes",
        "earlier_gradient_bytes",
        # 0 for fused attention
        "activations_at_attention_bytes",
        "temporaries_at_attention_bytes",
    ),
    StepMoment(
        "saved",
        "forward",
        "saved_moment_bytes",
        "standing_optimizer_bytes",
        "earlier_gradient_bytes",
        "activation_bytes",
        "temporaries_at_saved_bytes",
    ),
    StepMoment(
        "loss",
        "backward",
        "loss_peak_bytes",
        "standing_optimizer_bytes",
        "earlier_gradient_bytes",
        "activations_at_loss_bytes",
        "temporaries_at_loss_bytes",
    ),
    StepMoment(
        "head",
        "backward",
        "head_peak_bytes",
        "standing_optimizer_bytes",
        "gradients_at_head_bytes",
        "activations_at_head_bytes",
        "temporaries_at_head_bytes",
    ),
    StepMoment(
        "layers",
        "backward",
        "layers_peak_bytes",
        "standing_optimizer_bytes",
        "gradients_at_layers_bytes",
        "activations_at_layers_bytes",
        "temporaries_at_layers_bytes",
    ),
    StepMoment(
        "embedding",
        "backward",
        "embedding_peak_bytes",
        "standing_optimizer_bytes",
        "gradients_at_embedding_bytes",
        "batch_bytes",
        "temporaries_at_embedding_bytes",
    ),
    StepMoment(
        "optimizer",
        "optimizer",
        "optimizer_peak_bytes",
        "optimizer_state_bytes",
        "gradient_bytes",
        "batch_bytes",
        "temporaries_at_optimizer_bytes",
    ),
)


def step_timeline(**given):
    """[(moment, category -> bytes)] in the order of time; the attention is left out where it is
    fused. Takes what peak_bytes takes."""
    computed = BOOK.evaluate(
        [
            "keeps_scores",
            *(name for moment in STEP_TIMELINE for name in moment.categories().values()),
        ],
        **given,
    )
    return [
        (moment, {category: computed[name] for category, name in moment.categories().items()})
        for moment in STEP_TIMELINE
        if moment.name != "attention" or computed["keeps_scores"]
    ]


# --- what lasts -----------------------------------------------------------------------------------


@BOOK.formula(
    symbol=r"M_\text{states}^\text{opt}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER
)
def optimizer_state_bytes(optimizer_bytes, step_counter_bytes):
    """bytes the optimizer holds from its first step on, its step counters among them"""
    return optimizer_bytes + step_counter_bytes


@BOOK.formula(
    symbol=r"M_\text{old}^\text{opt}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER
)
def standing_optimizer_bytes(first_step, optimizer_state_bytes):
    """bytes the optimizer holds during forward and backward: none in the first step"""
    return (1 - first_step) * optimizer_state_bytes


@BOOK.formula(
    symbol=r"M_\text{old}^\text{grad}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER
)
def earlier_gradient_bytes(accumulation_steps, gradient_bytes):
    """bytes of the gradients that earlier microbatches left"""
    return where(accumulation_steps > 1, gradient_bytes, 0)


# --- forward --------------------------------------------------------------------------------------


@BOOK.formula(symbol=r"A_{qk}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def scored_bytes(
    linear_input_bytes,
    microbatch,
    key_value_heads,
    learned_positions,
    query_key_value_bytes,
    key_bytes,
):
    """bytes the product of queries and keys saves: scaled queries, and keys; or all that lies with
    keys that were not moved"""
    return linear_input_bytes + where(
        minimum(microbatch, key_value_heads) > 1,
        key_bytes,
        where(equal(learned_positions, 1), query_key_value_bytes, key_bytes),
    )


@BOOK.formula(symbol=r"A_{wv}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def weighted_bytes(score_dropout_bytes, microbatch, key_value_heads, learned_positions, key_bytes):
    """bytes the product of scores and values saves on top: what dropout keeps, and values that lie
    by themselves"""
    return score_dropout_bytes + where(
        minimum(microbatch, key_value_heads) > 1, key_bytes, (1 - learned_positions) * key_bytes
    )


@BOOK.formula(symbol=r"A_\text{softmax}", unit="bytes", source=_GPT, measured_by=_LEDGER)
def attention_saved_bytes(
    norm_activation_bytes,
    linear_input_bytes,
    weight_copy_element_bytes,
    hidden,
    query_key_value_size,
    rotation_bytes,
    scored_bytes,
    score_bytes,
):
    """activations of one layer's unfused attention when its softmax is done"""
    return (
        norm_activation_bytes
        + linear_input_bytes
        + weight_copy_element_bytes * hidden * query_key_value_size
        + rotation_bytes
        + scored_bytes
        + score_bytes
    )


@BOOK.formula(symbol=r"A_1", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_attention_bytes(
    keeps_scores,
    microbatch_tokens,
    mask_bytes,
    layers,
    layer_activation_bytes,
    attention_saved_bytes,
    score_forward_bytes,
    score_softmax_bytes,
    weighted_bytes,
):
    """activations in the last layer's unfused attention: of the layers before it, and what it has
    saved so far"""
    return keeps_scores * (
        8 * microbatch_tokens
        + mask_bytes
        + (layers - 1) * layer_activation_bytes
        + attention_saved_bytes
        + where(score_forward_bytes > score_softmax_bytes, weighted_bytes, 0)
    )


@BOOK.formula(symbol=r"T_1", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_attention_bytes(
    keeps_scores,
    forward_peak_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    earlier_gradient_bytes,
    activations_at_attention_bytes,
):
    """temporaries in the last layer's unfused attention: raw and masked scores above all; 0 for
    fused attention"""
    return forward_peak_bytes - keeps_scores * (
        parameter_bytes
        + standing_optimizer_bytes
        + earlier_gradient_bytes
        + activations_at_attention_bytes
    )


@BOOK.formula(symbol=r"B_\text{saved}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def saved_moment_bytes(
    parameter_bytes, standing_optimizer_bytes, earlier_gradient_bytes, activation_bytes
):
    """bytes at the end of forward, when all that backward needs is there; the loss itself (4) comes
    on top"""
    return (
        parameter_bytes + standing_optimizer_bytes + earlier_gradient_bytes + activation_bytes + 4
    )


@BOOK.formula(symbol=r"T_\text{saved}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_saved_bytes(
    saved_moment_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    earlier_gradient_bytes,
    activation_bytes,
):
    """temporaries at the end of forward: the loss"""
    return saved_moment_bytes - (
        parameter_bytes + standing_optimizer_bytes + earlier_gradient_bytes + activation_bytes
    )


# --- backward: loss and head ----------------------------------------------------------------------


@BOOK.formula(symbol=r"A_2", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_loss_bytes(activation_bytes):
    """activations in the backward of the log-softmax: all but the sum of the loss's weights (4)"""
    return activation_bytes - 4


@BOOK.formula(symbol=r"T_2", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_loss_bytes(
    loss_peak_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    earlier_gradient_bytes,
    activations_at_loss_bytes,
):
    """temporaries in the backward of the log-softmax: two gradients of the size of the logits"""
    return loss_peak_bytes - (
        parameter_bytes
        + standing_optimizer_bytes
        + earlier_gradient_bytes
        + activations_at_loss_bytes
    )


@BOOK.formula(symbol=r"G_3", unit="bytes", source=_GPT, measured_by=_LEDGER)
def gradients_at_head_bytes(
    earlier_gradient_bytes, head_backward_bytes, head_norm_bytes, head_gradient_bytes, tied_head
):
    """gradients while the head goes backward: once it is at the norm, an untied head has its own"""
    return earlier_gradient_bytes + where(
        equal(head_backward_bytes, head_norm_bytes), (1 - tied_head) * head_gradient_bytes, 0
    )


@BOOK.formula(symbol=r"A_3", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_head_bytes(
    batch_bytes,
    mask_bytes,
    layers,
    layer_activation_bytes,
    head_backward_bytes,
    head_product_bytes,
    head_activation_bytes,
    norm_activation_bytes,
):
    """activations while the head goes backward: of all layers, and of the head, or of its norm
    alone once the product is done"""
    return (
        batch_bytes
        + mask_bytes
        + layers * layer_activation_bytes
        + where(
            equal(head_backward_bytes, head_product_bytes),
            head_activation_bytes,
            norm_activation_bytes,
        )
    )


@BOOK.formula(symbol=r"T_3", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_head_bytes(
    head_peak_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    gradients_at_head_bytes,
    activations_at_head_bytes,
):
    """temporaries while the head goes backward: gradients of the logits, and of a weight until it
    is the parameter's"""
    return head_peak_bytes - (
        parameter_bytes
        + standing_optimizer_bytes
        + gradients_at_head_bytes
        + activations_at_head_bytes
    )


# --- backward: layers -----------------------------------------------------------------------------


@BOOK.formula(symbol=r"A_4", unit="bytes", source=_GPT, measured_by=_LEDGER)
def activations_at_layers_bytes(
    batch_bytes,
    mask_bytes,
    layers,
    layer_activation_bytes,
    new_gradient_element_bytes,
    layer_parameters,
    mlp_needs_most,
    activations_at_mlp_bytes,
    activations_in_attention_bytes,
):
    """activations while a layer goes backward: its own, and those of all others if it is the last,
    with which backward begins"""
    return (
        batch_bytes
        + mask_bytes
        + (layers - 1)
        * where(
            layer_activation_bytes > new_gradient_element_bytes * layer_parameters,
            layer_activation_bytes,
            0,
        )
        + where(equal(mlp_needs_most, 1), activations_at_mlp_bytes, activations_in_attention_bytes)
    )


@BOOK.formula(symbol=r"G_4", unit="bytes", source=_GPT, measured_by=_LEDGER)
def gradients_at_layers_bytes(
    earlier_gradient_bytes,
    tied_head,
    head_gradient_bytes,
    new_gradient_element_bytes,
    norm_parameters,
    layers,
    layer_activation_bytes,
    layer_parameters,
    mlp_needs_most,
    gradients_at_mlp_bytes,
    gradients_in_attention_bytes,
):
    """gradients while a layer goes backward: of head and last norm, its own, and those of all
    others if it is the first"""
    return (
        earlier_gradient_bytes
        + (1 - tied_head) * head_gradient_bytes
        + new_gradient_element_bytes * norm_parameters
        + (layers - 1)
        * where(
            layer_activation_bytes > new_gradient_element_bytes * layer_parameters,
            0,
            new_gradient_element_bytes * layer_parameters,
        )
        + where(equal(mlp_needs_most, 1), gradients_at_mlp_bytes, gradients_in_attention_bytes)
    )


@BOOK.formula(symbol=r"T_4", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_layers_bytes(
    layers_peak_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    gradients_at_layers_bytes,
    activations_at_layers_bytes,
):
    """temporaries while a layer goes backward: gradients on their way, and that of a tied head,
    which waits"""
    return layers_peak_bytes - (
        parameter_bytes
        + standing_optimizer_bytes
        + gradients_at_layers_bytes
        + activations_at_layers_bytes
    )


# --- embedding and optimizer ----------------------------------------------------------------------


@BOOK.formula(symbol=r"G_5", unit="bytes", source=_GPT, measured_by=_LEDGER)
def gradients_at_embedding_bytes(
    earlier_gradient_bytes, new_gradient_element_bytes, parameters, vocabulary, hidden
):
    """gradients when the token table is about to get its own: of everything else"""
    return earlier_gradient_bytes + new_gradient_element_bytes * (parameters - vocabulary * hidden)


@BOOK.formula(symbol=r"T_5", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_embedding_bytes(
    embedding_peak_bytes,
    parameter_bytes,
    standing_optimizer_bytes,
    gradients_at_embedding_bytes,
    batch_bytes,
):
    """temporaries when the token table is about to get its gradient: that gradient, in two parts
    and their sum for a tied one"""
    return embedding_peak_bytes - (
        parameter_bytes + standing_optimizer_bytes + gradients_at_embedding_bytes + batch_bytes
    )


@BOOK.formula(symbol=r"T_6", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_optimizer_bytes(
    optimizer_peak_bytes, parameter_bytes, optimizer_state_bytes, gradient_bytes, batch_bytes
):
    """temporaries in the optimizer's step: what the update needs beside the states, and the loss
    (4)"""
    return optimizer_peak_bytes - (
        parameter_bytes + optimizer_state_bytes + gradient_bytes + batch_bytes
    )


# --- at the peak, and against a card --------------------------------------------------------------


@BOOK.formula(
    symbol=r"M_\text{peak}^\text{opt}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER
)
def optimizer_at_peak_bytes(peak_moment, optimizer_state_bytes, standing_optimizer_bytes):
    """bytes the optimizer holds at the peak"""
    return where(equal(peak_moment, 6), optimizer_state_bytes, standing_optimizer_bytes)


@BOOK.formula(symbol=r"G_\text{peak}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def gradients_at_peak_bytes(
    peak_moment,
    earlier_gradient_bytes,
    gradients_at_head_bytes,
    gradients_at_layers_bytes,
    gradients_at_embedding_bytes,
    gradient_bytes,
):
    """bytes of gradients at the peak: none from this microbatch when it falls in forward or at the
    loss"""
    return where(
        peak_moment < 3,
        earlier_gradient_bytes,
        where(
            equal(peak_moment, 3),
            gradients_at_head_bytes,
            where(
                equal(peak_moment, 4),
                gradients_at_layers_bytes,
                where(equal(peak_moment, 5), gradients_at_embedding_bytes, gradient_bytes),
            ),
        ),
    )


@BOOK.formula(symbol=r"A_\text{peak}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def activations_at_peak_bytes(
    peak_moment,
    activations_at_attention_bytes,
    activations_at_loss_bytes,
    activations_at_head_bytes,
    activations_at_layers_bytes,
    batch_bytes,
):
    """bytes of activations at the peak; of the batch alone when they are all used up"""
    return where(
        equal(peak_moment, 1),
        activations_at_attention_bytes,
        where(
            equal(peak_moment, 2),
            activations_at_loss_bytes,
            where(
                equal(peak_moment, 3),
                activations_at_head_bytes,
                where(equal(peak_moment, 4), activations_at_layers_bytes, batch_bytes),
            ),
        ),
    )


@BOOK.formula(symbol=r"T_\text{peak}", unit="bytes", source=_DEFINITION, measured_by=_LEDGER)
def temporaries_at_peak_bytes(
    peak_bytes,
    parameter_bytes,
    optimizer_at_peak_bytes,
    gradients_at_peak_bytes,
    activations_at_peak_bytes,
):
    """bytes of temporaries at the peak"""
    return peak_bytes - (
        parameter_bytes
        + optimizer_at_peak_bytes
        + gradients_at_peak_bytes
        + activations_at_peak_bytes
    )


@BOOK.formula(
    symbol=r"B_\text{free}",
    unit="bytes",
    source=_DEFINITION,
    measured_by="tests/where_the_memory_goes/test_timeline.py::test_a_step_against_a_card",
)
def peak_spare_bytes(gpu_memory_bytes, peak_bytes):
    """bytes of the GPU that the step leaves at its peak"""
    return maximum(gpu_memory_bytes - peak_bytes, 0)


@BOOK.formula(
    symbol=r"B_\text{over}",
    unit="bytes",
    source=_DEFINITION,
    measured_by="tests/where_the_memory_goes/test_timeline.py::test_a_step_against_a_card",
)
def peak_overflow_bytes(gpu_memory_bytes, peak_bytes):
    """bytes of the step that find no place on the GPU at its peak"""
    return maximum(peak_bytes - gpu_memory_bytes, 0)


@BOOK.formula(
    symbol=r"1_\text{peak}",
    unit="count",
    source=_DEFINITION,
    measured_by="tests/where_the_memory_goes/test_timeline.py::test_a_step_against_a_card",
)
def step_fits(peak_bytes, gpu_memory_bytes):
    """1 if the step fits the GPU, 0 if not"""
    return where(peak_bytes <= gpu_memory_bytes, 1, 0)
