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
section = BOOK.section(source=_GPT, measured_by=_STEPS)


class WorkingSets(section):
    @BOOK.own(source="torch.autograd")
    def new_gradient_element_bytes(q):
        r"""\beta_\text{new} | bytes | bytes that an element of a finished gradient adds: none when
        the gradient is added to the gradient of earlier microbatches"""
        return where(q.accumulation_steps > 1, 0, q.gradient_element_bytes)

    @BOOK.own(source="torch.autocast")
    def cast_element_bytes(q):
        r"""\beta_\text{cast} | bytes | bytes of an element of a weight's gradient in both types
        together, while the gradient is converted to fp32"""
        return q.copies_weights * (q.compute_element_bytes + q.gradient_element_bytes)

    def norm_backward_bytes(q):
        r"""W_\text{norm} | bytes | bytes at work in a norm's backward: gradients in and out; this
        book's RMSNorm computes with four fp32 tensors, five from 16 bits"""
        return q.residual_bytes + where(
            equal(q.biases, 1),
            q.residual_bytes + 2 * q.gradient_element_bytes * q.hidden,
            4 * q.hidden
            + 4 * q.microbatch_tokens * q.hidden * where(q.residual_element_bytes < 4, 5, 4),
        )

    def first_product_bytes(q):
        """A_x | bytes | bytes saved up to the product that makes queries, keys and values: norm,
        input, copy of the weight"""
        return (
            q.norm_activation_bytes
            + q.linear_input_bytes
            + q.weight_copy_element_bytes * q.hidden * q.query_key_value_size
        )

    # --- forward, in unfused attention ------------------------------------------------------------
    @BOOK.own(source="torch.autocast")
    def bias_copy_bytes(q):
        r"""A_\text{bias} | bytes | bytes of autocast's copies of biases when forward is in the last
        attention; backward needs none, but autocast keeps them"""
        return (
            q.weight_copy_element_bytes
            * q.biases
            * (
                q.layers * q.query_key_value_size
                + (q.layers - 1) * (2 * q.hidden + (1 + q.gated_mlp) * q.feed_forward)
            )
        )

    def moves_keys(q):
        r"""1_\text{move} | count | 1 if unfused attention moves keys and values so that a group is
        one matrix, 0 if attention reads them in place"""
        return where(minimum(q.microbatch, q.key_value_heads) > 1, 1, 0)

    def moved_query_bytes(q):
        """U_q | bytes | bytes of queries and keys that nothing keeps: before they are rotated, and
        moved so that a group is one matrix"""
        return q.query_copy_bytes + where(
            equal(q.moves_keys, 1),
            (2 - q.learned_positions) * q.query_key_value_bytes + q.query_bytes,
            (1 - q.learned_positions) * (q.query_key_value_bytes + q.query_bytes)
            + where(q.key_value_heads < q.heads, q.query_bytes, 0),
        )

    @BOOK.own(measured_by=_LEDGER)
    def scored_bytes(q):
        """A_{qk} | bytes | bytes the product of queries and keys saves: scaled queries, and keys;
        or the whole tensor that holds keys that were not moved"""
        return q.query_bytes + where(
            q.learned_positions > q.moves_keys, q.query_key_value_bytes, q.key_bytes
        )

    @BOOK.own(measured_by=_LEDGER)
    def weighted_bytes(q):
        """A_{wv} | bytes | bytes that the product of scores and values saves besides the scores:
        the bytes that dropout keeps, and values that were moved"""
        return q.score_dropout_bytes + where(q.learned_positions > q.moves_keys, 0, q.key_bytes)

    @BOOK.own(measured_by=_LEDGER)
    def attention_saved_bytes(q):
        r"""A_\text{softmax} | bytes | activations of one layer's unfused attention when its softmax
        is done"""
        return q.first_product_bytes + q.rotation_bytes + q.scored_bytes + q.score_bytes


SCORES = Places(
    "scores", r"_\text{scores}", "in unfused attention, on the way forward", _GPT, _STEPS
)


@SCORES.place("softmax", symbol=r"_{qk}^\text{fwd}")
def softmax(q):
    """at the softmax: raw and masked scores beside its result"""
    return live(
        activations=q.attention_saved_bytes,
        temporaries=2 * q.score_bytes
        + q.moved_query_bytes
        + (1 - q.moves_keys) * (1 - q.learned_positions) * q.key_bytes,
    )


@SCORES.place("weighted", symbol=r"_{wv}^\text{fwd}")
def weighted(q):
    """at the product with the values: its scores and its output"""
    return live(
        activations=q.attention_saved_bytes + q.weighted_bytes,
        temporaries=q.score_bytes + q.moved_query_bytes + q.query_bytes,
    )


SCORES.largest()


class BackwardInTheHead(section):
    @BOOK.own(source="torch.autograd")
    def head_gradient_bytes(q):
        r"""G_\text{head} | bytes | bytes the gradient of the head's weight holds while the layers
        go backward; a tied one waits for the embedding's"""
        return (
            q.vocabulary
            * q.hidden
            * where(equal(q.tied_head, 1), q.gradient_element_bytes, q.new_gradient_element_bytes)
        )


HEAD = Places("head_work", r"_\text{head}^\prime", "where the head needs most", _GPT, _LEDGER)


@HEAD.place("head_product", symbol=r"_{yW}")
def head_product(q):
    """in the head's product: the gradients of its input, of the logits and of the weight"""
    return live(
        activations=q.head_activation_bytes,
        temporaries=q.linear_input_bytes
        + q.compute_element_bytes * q.vocabulary * (q.microbatch_tokens + q.hidden),
    )


@HEAD.place("head_norm", symbol=r"_\text{last}")
def head_norm(q):
    """in the last norm, with the gradient of the head's weight"""
    return live(
        activations=q.norm_activation_bytes,
        gradients=(1 - q.tied_head) * q.head_gradient_bytes,
        temporaries=q.tied_head * q.head_gradient_bytes + q.norm_backward_bytes,
    )


@HEAD.place("head_cast", symbol=r"_{yW}^\text{fp32}")
def head_cast(q):
    """while the gradient of the head's weight is converted to fp32"""
    return live(
        activations=q.norm_activation_bytes,
        temporaries=q.residual_bytes + q.cast_element_bytes * q.vocabulary * q.hidden,
    )


HEAD.largest()


# --- backward, in one layer: the MLP, then attention ----------------------------------------------
class BackwardInOneLayer(section):
    def mlp_done_parameters(q):
        r"""n_\text{up} | count | parameters of the MLP's products that are done when the backward
        of its first one begins"""
        return (1 + q.gated_mlp) * q.hidden * q.feed_forward + q.biases * (
            q.hidden + q.gated_mlp * q.feed_forward
        )

    def mlp_side_parameters(q):
        r"""n_\text{mlp} | count | parameters of the MLP and its norm, which are done when attention
        goes backward"""
        return q.mlp_parameters + q.norm_parameters

    def attention_side_parameters(q):
        r"""n_\text{out} | count | parameters that are done when attention's output product is done,
        its own included"""
        return q.mlp_side_parameters + q.hidden * (q.query_size + q.biases)


LAYER = Places("layer_work", r"_\ell^\prime", "in one layer, where it needs most", _GPT, _LEDGER)


@LAYER.place("mlp_down_cast", symbol=r"_\text{down}^\text{fp32}", when="copies_weights")
def mlp_down_cast(q):
    """while the gradient of the MLP's second weight is converted to fp32"""
    return live(
        activations=q.attention_activation_bytes
        + (
            q.mlp_activation_bytes
            - (
                q.mask_bytes
                + q.inner_bytes
                + q.weight_copy_element_bytes * q.hidden * q.feed_forward
            )
        ),
        temporaries=q.biases * q.compute_element_bytes * q.hidden
        + q.inner_bytes
        + (q.weight_copy_element_bytes + q.gradient_element_bytes) * q.hidden * q.feed_forward,
    )


@LAYER.place("mlp_down", symbol=r"_\text{down}")
def mlp_down(q):
    """in the MLP's second product: its inner gradient and the weight's"""
    return live(
        activations=q.attention_activation_bytes + (q.mlp_activation_bytes - q.mask_bytes),
        temporaries=q.compute_element_bytes * q.hidden * (q.biases + q.feed_forward)
        + q.inner_bytes
        + maximum(q.copies_weights, q.has_dropout) * q.linear_input_bytes,
    )


@LAYER.place("mlp_gate", symbol=r"_\text{gate}", when="gated_mlp")
def mlp_gate(q):
    """in the product with the gate: three inner tensors saved, three gradients"""
    return live(
        activations=q.attention_activation_bytes
        + q.norm_activation_bytes
        + q.mlp_input_bytes
        + 3 * q.inner_bytes
        + 2 * q.weight_copy_element_bytes * q.hidden * q.feed_forward,
        gradients=q.new_gradient_element_bytes * q.hidden * (q.feed_forward + q.biases),
        temporaries=3 * q.inner_bytes,
    )


@LAYER.place("mlp_up_cast", symbol=r"_\text{up}^\text{fp32}")
def mlp_up_cast(q):
    """while the gradient of the MLP's first weight is converted to fp32"""
    return live(
        activations=q.attention_activation_bytes + q.norm_activation_bytes,
        gradients=q.new_gradient_element_bytes * q.mlp_done_parameters,
        temporaries=q.biases * q.compute_element_bytes * q.feed_forward
        + q.cast_element_bytes * q.hidden * q.feed_forward
        + q.residual_bytes,
    )


@LAYER.place("mlp_up", symbol=r"_\text{up}^\prime")
def mlp_up(q):
    """in the MLP's first product; with a gate, the gate's"""
    return live(
        activations=q.attention_activation_bytes
        + q.norm_activation_bytes
        + q.linear_input_bytes
        + q.weight_copy_element_bytes * q.hidden * q.feed_forward,
        gradients=q.new_gradient_element_bytes * q.mlp_done_parameters,
        temporaries=q.compute_element_bytes * q.feed_forward * (q.biases + q.hidden)
        + q.linear_input_bytes
        + q.inner_bytes
        + q.gated_mlp * q.residual_bytes,
    )


@LAYER.place("mlp_norm", symbol=r"_\text{norm}^\text{mlp}")
def mlp_norm(q):
    """in the norm before the MLP, whose products are done"""
    return live(
        activations=q.attention_activation_bytes + q.norm_activation_bytes,
        gradients=q.new_gradient_element_bytes * q.mlp_parameters,
        temporaries=q.norm_backward_bytes,
    )


@LAYER.place("attention_core", symbol=r"_\text{core}^\prime")
def between_products(q):
    """between attention's products: the gradients of queries, keys and values, or of the scores.
    Fused attention's kernel saves its output too"""
    return live(
        activations=q.first_product_bytes
        + q.attention_core_bytes
        + (1 - q.keeps_scores) * q.query_bytes,
        gradients=q.new_gradient_element_bytes * q.attention_side_parameters,
        temporaries=where(
            equal(q.keeps_scores, 1),
            maximum(
                q.query_bytes + q.key_bytes + q.score_bytes,
                (1 - q.has_dropout) * (2 * q.score_bytes + q.keeps_whole_product * q.key_bytes),
            ),
            q.query_bytes + q.query_key_value_bytes,
        ),
    )


@LAYER.place("first_product", symbol=r"_{xW}")
def first_product(q):
    """in the product that makes queries, keys and values"""
    return live(
        activations=q.first_product_bytes,
        gradients=q.new_gradient_element_bytes * q.attention_side_parameters,
        temporaries=q.compute_element_bytes * q.query_key_value_size * (q.biases + q.hidden)
        + q.linear_input_bytes
        + q.query_key_value_bytes,
    )


@LAYER.place("attention_norm", symbol=r"_\text{norm}^\text{attn}")
def attention_norm(q):
    """in the norm before attention, whose products are done"""
    return live(
        activations=q.norm_activation_bytes,
        gradients=q.new_gradient_element_bytes * (q.mlp_side_parameters + q.attention_parameters),
        temporaries=q.norm_backward_bytes,
    )


@LAYER.place("first_cast", symbol=r"_{xW}^\text{fp32}")
def first_cast(q):
    """while the gradient of the weight of queries, keys and values is converted to fp32"""
    return live(
        activations=q.norm_activation_bytes,
        gradients=q.new_gradient_element_bytes * q.attention_side_parameters,
        temporaries=q.query_key_value_size
        * (q.biases * q.compute_element_bytes + q.cast_element_bytes * q.hidden)
        + q.residual_bytes,
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
def first_layer(q):
    """of the other layers when backward is in the first"""
    return live(gradients=(q.layers - 1) * q.new_gradient_element_bytes * q.layer_parameters)


@OTHERS.place("last_layer", symbol=r"_\text{deep}")
def last_layer(q):
    """of the other layers when backward is in the last"""
    return live(activations=(q.layers - 1) * q.layer_activation_bytes)


OTHERS.largest()
