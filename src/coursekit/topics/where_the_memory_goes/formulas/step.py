"""A training step: eight places in the order of time, each with every byte that is live then, by
category; the peak is the largest of six. The formulas are for the last microbatch of a step. Places
that stay within a percent of another are left out.
"""

# The story: at the start nothing is saved. 1 forward, in the attention of the last layer, with the
# activations of all others; only unfused attention is so large. Then all is saved. 2 loss: back
# through the softmax over the vocabulary, with everything saved and two more tensors of the size of
# the logits. 3 head: the gradients of the logits and of a weight as large as the vocabulary. 4
# layers: each turns its activations into gradients. 5 embedding: a gradient for the whole table,
# however few of its rows were used; a tied table gets two and adds them. 6 optimizer: all
# gradients, all states, and what the update needs beside them. The start and the end of forward are
# there to be looked at: they cannot be the peak.
#
# Categories are the byte ledger's: a tensor is a temporary until autograd saves it (an activation)
# or adds it to a parameter's gradient. The loss and its gradient take 4 bytes each.

from coursekit.formulas.places import Places, live
from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import equal, floor_div, maximum, minimum, where

_GPT = "counted from gpt.py"
_MASTERS = "shardlab.mixed_precision.MasterWeights"
_PILES = "tests/slow_to_fast/test_ladder_of_memory.py::test_masters_are_updated_in_piles"
_STEPS = "tests/where_the_memory_goes/test_step.py::test_random_steps"
_LEDGER = (
    "tests/where_the_memory_goes/test_timeline.py::test_categories_at_the_peak_of_random_steps"
)

# peak_point counts them from 1
POINTS = ("forward", "loss", "head", "layers", "embedding", "optimizer")


class WhatLasts(BOOK.section(source="definition", measured_by=_STEPS)):
    def step_tokens(q):
        r"""T_\text{step} | tokens | tokens that one rank takes in a step"""
        return q.accumulation_steps * q.microbatch * q.sequence

    def optimizer_state_bytes(q):
        r"""M_\text{states}^\text{opt} | bytes | bytes the optimizer holds from its first step on,
        step counters included"""
        return q.optimizer_bytes + q.step_counter_bytes

    def standing_optimizer_bytes(q):
        r"""M_\text{old}^\text{opt} | bytes | bytes the optimizer holds during forward and backward:
        none in the first step"""
        return (1 - q.first_step) * q.optimizer_state_bytes

    def earlier_gradient_bytes(q):
        r"""M_\text{old}^\text{grad} | bytes | bytes of the gradients that earlier microbatches
        left"""
        return where(q.accumulation_steps > 1, q.gradient_bytes, 0)

    @BOOK.own(source="torch.optim.adamw, _single_tensor_adamw")
    def optimizer_loop_elements(q):
        r"""n_\text{loop} | count | elements besides the states in Adam's loop: a square root and a
        quotient of this tensor, and the quotient of the tensor before"""
        return maximum(
            2 * q.learned_positions * q.max_sequence * q.hidden,
            q.learned_positions * q.max_sequence * q.hidden + 2 * q.vocabulary * q.hidden,
            (1 - q.tied_head) * (q.hidden + 2 * q.vocabulary * q.hidden),
            q.hidden + 2 * q.hidden * q.query_key_value_size,
            (1 - q.biases) * q.hidden * (q.query_key_value_size + 2 * q.query_size),
            2 * q.hidden * q.feed_forward
            + where(
                equal(q.biases, 1), maximum(q.hidden, q.feed_forward), q.hidden * q.feed_forward
            ),
        )

    @BOOK.own(source=_MASTERS, measured_by=_PILES)
    def update_parameters(q):
        r"""\Psi_\text{upd} | parameters | parameters that the update takes at once: all, or, of an
        optimizer with master copies, a pile of 128 MiB in fp32, a third of the model if that is
        less, and at least one tensor"""
        return where(
            q.master_element_bytes > 0,
            maximum(
                q.vocabulary * q.hidden,
                q.hidden * q.feed_forward,
                q.hidden * q.query_key_value_size,
                q.learned_positions * q.max_sequence * q.hidden,
                minimum(floor_div(q.parameters, 3), 33_554_432),
            ),
            q.parameters,
        )

    @BOOK.own(source=_MASTERS, measured_by=_PILES)
    def gradient_copy_element_bytes(q):
        r"""\beta_\text{pile} | bytes | bytes of one element of the fp32 gradients that an update
        with master copies makes of 16-bit ones"""
        return where(equal(q.master_element_bytes, 4), where(q.gradient_element_bytes < 4, 4, 0), 0)

    @BOOK.own(source="torch.optim.adamw")
    def optimizer_temporary_bytes(q):
        r"""M_\text{temp} | bytes | bytes the update needs besides the states: Adam's square roots,
        for a tensor or two in the loop, for all tensors with foreach; with master copies also fp32
        gradients of a pile"""
        return (
            q.moment_element_bytes
            * where(
                q.optimizer_moments > 1,
                where(
                    equal(q.optimizer_mode, 0),
                    q.optimizer_loop_elements,
                    where(equal(q.optimizer_mode, 1), q.update_parameters, 0),
                ),
                0,
            )
            + q.gradient_copy_element_bytes * q.update_parameters
        )


# --- the places -----------------------------------------------------------------------------------

STEP = Places(
    "peak",
    r"_\text{peak}",
    "the step needs: the most that is live at once",
    _GPT,
    _LEDGER,
    usual=dict(
        parameters="parameter_bytes",
        optimizer="standing_optimizer_bytes",
        gradients="earlier_gradient_bytes",
    ),
    letter="R",
    there="at the peak",
)


@STEP.place(
    "start", phase="forward", symbol=r"_\text{floor}", total="step_floor_bytes", largest=False
)
def start(q):
    """that live through forward and backward: parameters, batch, optimizer states, gradients of
    earlier microbatches"""
    return live(temporaries=q.batch_bytes)


@STEP.place(
    "attention", phase="forward", symbol="_1", total="forward_peak_bytes", when="keeps_scores"
)
def attention(q):
    """in the last layer's unfused attention: 0 for fused attention, where another place is larger.
    The targets (8 for each token), an earlier loss (4) and the causal mask are temporaries there"""
    return live(
        activations=8 * q.microbatch_tokens
        + q.mask_bytes
        + (q.layers - 1) * q.layer_activation_bytes
        + q.activations_at_scores_bytes,
        temporaries=8 * q.microbatch_tokens
        + where(q.accumulation_steps > 1, 4, 0)
        + q.bias_copy_bytes
        + q.copies_weights * q.residual_bytes
        + q.compute_element_bytes * q.sequence * q.sequence
        + q.temporaries_at_scores_bytes,
    )


@STEP.place(
    "saved", phase="forward", symbol=r"_\text{saved}", total="end_of_forward_bytes", largest=False
)
def saved(q):
    """at the end of forward: everything that backward needs, and the loss"""
    return live(activations=q.activation_bytes, temporaries=4)


@STEP.place("loss", phase="backward", symbol="_2", total="loss_peak_bytes")
def loss(q):
    """in the backward of the log-softmax: everything saved but the sum of the targets' weights
    (4), and two gradients as large as the saved log-softmax"""
    return live(activations=q.activation_bytes - 4, temporaries=2 * q.logit_bytes + 8)


@STEP.place("head", phase="backward", symbol="_3", total="head_peak_bytes")
def head(q):
    """while the head goes backward: the activations of all layers are there"""
    return live(
        gradients=q.earlier_gradient_bytes + q.gradients_at_head_work_bytes,
        activations=q.batch_bytes
        + q.mask_bytes
        + q.layers * q.layer_activation_bytes
        + q.activations_at_head_work_bytes,
        temporaries=8 + q.temporaries_at_head_work_bytes,
    )


@STEP.place("layers", phase="backward", symbol="_4", total="layers_peak_bytes")
def layers(q):
    """while a layer goes backward: with head and last norm done, in the last layer or the first"""
    return live(
        gradients=q.earlier_gradient_bytes
        + (1 - q.tied_head) * q.head_gradient_bytes
        + q.new_gradient_element_bytes * q.norm_parameters
        + q.gradients_at_other_layers_bytes
        + q.gradients_at_layer_work_bytes,
        activations=q.batch_bytes
        + q.mask_bytes
        + q.activations_at_other_layers_bytes
        + q.activations_at_layer_work_bytes,
        temporaries=8
        + q.tied_head * q.head_gradient_bytes
        + q.residual_bytes
        + q.temporaries_at_layer_work_bytes,
    )


@STEP.place("embedding", phase="backward", symbol="_5", total="embedding_peak_bytes")
def embedding(q):
    """when the token table gets its gradient: a tied table then has two gradients and their sum"""
    return live(
        gradients=q.earlier_gradient_bytes
        + q.new_gradient_element_bytes * (q.parameters - q.vocabulary * q.hidden),
        activations=q.batch_bytes,
        temporaries=8
        + q.gradient_element_bytes * q.vocabulary * q.hidden
        + maximum(
            q.tied_head * q.gradient_element_bytes * q.vocabulary * q.hidden + q.residual_bytes,
            2 * q.tied_head * q.gradient_element_bytes * q.vocabulary * q.hidden,
        ),
    )


@STEP.place("optimizer", phase="optimizer", symbol="_6", total="optimizer_peak_bytes")
def optimizer(q):
    """in the optimizer's step: the training loop still holds batch and loss"""
    return live(
        optimizer=q.optimizer_state_bytes,
        gradients=q.gradient_bytes,
        activations=q.batch_bytes,
        temporaries=q.optimizer_temporary_bytes + 4,
    )


STEP.largest(which="peak_point")
STEP_TIMELINE = tuple(STEP.places)


def step_timeline(**given):
    """[(place, category -> bytes)] in the order of time; the attention is left out where it is
    fused. Takes what peak_bytes takes."""
    wanted = [name for place in STEP_TIMELINE for name in (place.when, *place.parts.values())]
    computed = BOOK.evaluate(list(dict.fromkeys(filter(None, wanted))), **given)
    return [
        (place, {category: computed[name] for category, name in place.parts.items()})
        for place in STEP_TIMELINE
        if not place.when or computed[place.when]
    ]
