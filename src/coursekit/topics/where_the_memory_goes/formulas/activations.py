"""Saved activations: what forward keeps for backward, tensor by tensor, counted right after the
loss, before backward frees any. Two element sizes tell the recipes apart: that of the residual
stream and of norms, and that of the inputs and outputs of matrix products.
"""

# Under autocast the two are 4 and 2, and every weight is kept a second time, as the 16-bit copy
# that the product was made with. Where PyTorch cannot pass on a view it copies, and backward keeps
# the copy: the microbatch and the key-value heads decide that.
#
# Counted on CPU. On CUDA, LayerNorm keeps fp32 statistics of 16-bit inputs (give
# layer_norm_statistic_element_bytes=4), and autocast makes the softmax of unfused attention fp32.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import equal, minimum, where

BOOK.given_beside(__file__)

_KORTHIKANTI = "Korthikanti et al. 2022, section 4.1"
_GPT = "counted from gpt.py"
_PARTS = (
    "tests/where_the_memory_goes/test_activations.py::test_each_module_keeps_what_its_formula_says"
)
_SAVED = "tests/where_the_memory_goes/test_step.py::test_random_steps"


class OneMicrobatch(BOOK.section(source="definition", measured_by=_PARTS)):
    @BOOK.own(least=1)
    def microbatch_tokens(q):
        """T | tokens | tokens of one microbatch"""
        return q.microbatch * q.sequence

    def has_dropout(q):
        r"""1_\text{drop} | count | 1 if elements are dropped, 0 if not: their share makes no
        difference to memory"""
        return where(q.dropout > 0, 1, 0)

    @BOOK.own(source=_GPT)
    def keeps_scores(q):
        r"""1_\text{scores} | count | 1 if attention keeps its scores, as unfused attention does; in
        this book's GPT dropout on the scores rules out fused attention"""
        return where(equal(q.has_dropout, 1), 1, 1 - q.fused_attention)

    @BOOK.own(source="torch.autocast")
    def weight_copy_element_bytes(q):
        r"""\beta_\text{copy} | bytes | bytes of an element of the copy that autocast makes of every
        weight; 0 where products read the weight itself"""
        return where(
            q.compute_element_bytes < q.parameter_element_bytes, q.compute_element_bytes, 0
        )

    @BOOK.own(source="torch.autocast")
    def copies_weights(q):
        r"""1_\text{copy} | count | 1 if weights and the inputs of products are copied to another
        type"""
        return where(q.weight_copy_element_bytes > 0, 1, 0)


# --- one norm, and the input of one linear layer --------------------------------------------------
class OneNormAndAttention(BOOK.section(source=_KORTHIKANTI, measured_by=_PARTS)):
    def residual_bytes(q):
        r"""A_\text{res} | bytes | bytes of the residual stream, which enters each norm; its
        gradient takes as many"""
        return q.residual_element_bytes * q.microbatch_tokens * q.hidden

    @BOOK.own(source="torch.native_layer_norm on CPU", choice=True)
    def layer_norm_statistic_element_bytes(q):
        r"""\beta_\text{stat} | bytes | bytes of LayerNorm's mean for one token: as many as an
        element of its input on CPU, always 4 on CUDA"""
        return q.residual_element_bytes

    def norm_activation_bytes(q):
        r"""A_\text{norm} | bytes | bytes a norm keeps: its input and, for each token, LayerNorm's
        mean and deviation or RMSNorm's one fp32 scale"""
        return q.residual_bytes + q.microbatch_tokens * where(
            equal(q.biases, 1), 2 * q.layer_norm_statistic_element_bytes, 4
        )

    def linear_input_bytes(q):
        r"""A_\text{in} | bytes | bytes of one vector of the hidden size for each token: the input
        that a linear layer keeps for its weight's gradient"""
        return q.compute_element_bytes * q.microbatch_tokens * q.hidden

    def mask_bytes(q):
        r"""A_\text{mask} | bytes | bytes of a dropout mask over the hidden size: one for each
        element"""
        return q.has_dropout * q.microbatch_tokens * q.hidden

    # --- attention --------------------------------------------------------------------------------
    @BOOK.own(source=_GPT)
    def query_key_value_size(q):
        r"""h_\text{qkv} | count | columns of queries, keys and values together; 3h without
        grouping"""
        return q.query_size + 2 * q.key_value_size

    def query_bytes(q):
        r"""A_\text{q} | bytes | bytes of the queries; the output of attention takes as many"""
        return q.compute_element_bytes * q.microbatch_tokens * q.query_size

    def query_key_value_bytes(q):
        r"""A_\text{qkv} | bytes | bytes of queries, keys and values"""
        return q.compute_element_bytes * q.microbatch_tokens * q.query_key_value_size

    def key_bytes(q):
        r"""A_\text{kv} | bytes | bytes of the keys; the values take as many"""
        return q.compute_element_bytes * q.microbatch_tokens * q.key_value_size

    def score_bytes(q):
        r"""A_\text{score} | bytes | bytes of one layer's attention scores: one for each head and
        pair of tokens"""
        return q.compute_element_bytes * q.heads * q.sequence * q.microbatch_tokens

    def score_dropout_bytes(q):
        r"""A_\text{drop} | bytes | bytes that dropout on the scores adds: the dropped scores, and a
        mask of one byte a score"""
        return q.has_dropout * (q.score_bytes + q.heads * q.sequence * q.microbatch_tokens)

    @BOOK.own(source=_GPT)
    def query_copy_bytes(q):
        r"""A_\text{split} | bytes | bytes of the copy that brings the queries of several groups
        together; rotary positions have made a new tensor anyway"""
        return q.learned_positions * where(
            q.key_value_heads > 1, where(q.key_value_heads < q.heads, q.query_bytes, 0), 0
        )

    @BOOK.own(source="torch.matmul")
    def keeps_whole_product(q):
        r"""1_\text{view} | count | 1 if unfused attention reads keys and values in place, and so
        keeps the whole tensor of queries, keys and values"""
        return q.learned_positions * where(
            equal(minimum(q.microbatch, q.key_value_heads, q.sequence), 1), 1, 0
        )

    @BOOK.own(source="Dao et al. 2022 (FlashAttention)")
    def fused_attention_bytes(q):
        r"""A_\text{fused} | bytes | bytes fused attention keeps: queries, keys, values, and one
        fp32 number for each head and token, the log-sum-exp"""
        return q.query_key_value_bytes + q.query_copy_bytes + 4 * q.heads * q.microbatch_tokens

    def unfused_attention_bytes(q):
        r"""A_\text{unfused} | bytes | bytes unfused attention keeps: queries (scaled, so a copy),
        keys, values, scores after the softmax, dropout"""
        return (
            q.query_key_value_bytes
            + q.keeps_whole_product * q.query_bytes
            + q.score_bytes
            + q.score_dropout_bytes
        )

    @BOOK.own(source="Su et al. 2021")
    def rotation_bytes(q):
        r"""A_\text{rot} | bytes | bytes of the cosines and sines of rotary positions, one for each
        position and column of a head"""
        return (1 - q.learned_positions) * q.compute_element_bytes * q.sequence * q.head_columns

    def attention_core_bytes(q):
        r"""A_\text{core} | bytes | bytes kept between the two linear layers of attention"""
        return (
            where(equal(q.keeps_scores, 1), q.unfused_attention_bytes, q.fused_attention_bytes)
            + q.rotation_bytes
        )

    def attention_activation_bytes(q):
        r"""A_\text{attn} | bytes | bytes attention keeps: norm, input and output of the core, the
        core, mask, copies of the weights"""
        return (
            q.norm_activation_bytes
            + q.linear_input_bytes
            + q.query_bytes
            + q.attention_core_bytes
            + q.mask_bytes
            + q.weight_copy_element_bytes * q.hidden * (q.query_key_value_size + q.query_size)
        )

    # --- MLP, layer, model ------------------------------------------------------------------------
    def inner_bytes(q):
        """A_f | bytes | bytes of one vector of the MLP's inner size for each token"""
        return q.compute_element_bytes * q.microbatch_tokens * q.feed_forward

    @BOOK.own(source=_GPT)
    def mlp_input_bytes(q):
        r"""A_\text{up} | bytes | bytes of the MLP's input; with a gate, autocast copies the input
        twice"""
        return (1 + q.copies_weights * q.gated_mlp) * q.linear_input_bytes

    def mlp_activation_bytes(q):
        r"""A_\text{mlp} | bytes | bytes the MLP keeps: norm, input, before and after GELU (with a
        gate: gate, its SiLU, the other factor, the product), mask"""
        return (
            q.norm_activation_bytes
            + q.mlp_input_bytes
            + (2 + 2 * q.gated_mlp) * q.inner_bytes
            + q.mask_bytes
            + (2 + q.gated_mlp) * q.weight_copy_element_bytes * q.hidden * q.feed_forward
        )

    @BOOK.own(
        measured_by="tests/where_the_memory_goes/test_activations.py::test_published_counts_of_a_layer"
    )
    def layer_activation_bytes(q):
        r"""A_\ell | bytes | bytes one layer keeps for backward; b s h (34 + 5 a s / h) in 16 bits
        with dropout, and the statistics of the norms"""
        return q.attention_activation_bytes + q.mlp_activation_bytes

    def logit_bytes(q):
        """A_V | bytes | bytes of the logits, or of their log-softmax, which the loss keeps: fp32 in
        every recipe"""
        return 4 * q.microbatch_tokens * q.vocabulary

    def head_activation_bytes(q):
        r"""A_\text{head} | bytes | bytes the head keeps: last norm, input, copy of the weight"""
        return (
            q.norm_activation_bytes
            + q.linear_input_bytes
            + q.weight_copy_element_bytes * q.vocabulary * q.hidden
        )

    @BOOK.own(source="torch.long")
    def batch_bytes(q):
        r"""A_\text{batch} | bytes | bytes of the microbatch itself: tokens and targets, 8 bytes
        each, both kept"""
        return 16 * q.microbatch_tokens

    @BOOK.own(measured_by=_SAVED)
    def activation_bytes(q):
        """A | bytes | bytes that forward and loss keep for backward: batch, mask after the
        embedding, layers, head, log-softmax, and the sum of the targets' weights in the loss (4)"""
        return (
            q.batch_bytes
            + q.mask_bytes
            + q.layers * q.layer_activation_bytes
            + q.head_activation_bytes
            + q.logit_bytes
            + 4
        )
