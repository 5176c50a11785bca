"""How many parameters a GPT has: counted tensor by tensor, as gpt.py builds it. Weights first, then
biases and norms."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import floor_div, minimum, where

_GPT = "counted from gpt.py"


class Heads(
    BOOK.section(
        source=_GPT, measured_by="tests/engines/test_formulas.py::test_counts_of_each_part"
    )
):
    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_counts_of_each_part")
    def head_columns(q):
        r"""h_\text{head} | count | columns of one head: hidden / heads, unless the model gives its
        own number"""
        return where(q.head_size > 0, q.head_size, floor_div(q.hidden, q.heads))

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_counts_of_each_part")
    def query_size(q):
        r"""h_\text{q} | count | columns of the queries of all heads: h, unless the model sets the
        number of columns of a head itself"""
        return q.heads * q.head_columns

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_counts_of_each_part")
    def key_value_size(q):
        r"""h_\text{kv} | count | columns of the keys, and as many of the values: the hidden size,
        unless several heads share keys and values"""
        return q.key_value_heads * q.head_columns


class ChoicesOfPublishedModels(
    BOOK.section(
        source="config.json of published models",
        measured_by="tests/engines/test_model_config.py::test_published_counts",
    )
):
    @BOOK.own(choice=True)
    def query_key_value_biases(q):
        r"""1_\text{qkv} | count | 1 if the product that makes queries, keys and values has a bias;
        in Qwen2, only this product has one"""
        return q.biases

    @BOOK.own(choice=True)
    def key_biases(q):
        r"""1_\text{kb} | count | 1 if keys have a bias; the softmax cancels it, so some models
        leave it out"""
        return q.query_key_value_biases

    @BOOK.own(choice=True)
    def norm_biases(q):
        r"""1_\text{nb} | count | 1 if norms have a bias besides their weight"""
        return q.biases

    def query_key_norm_parameters(q):
        r"""\Psi_\text{qk} | parameters | parameters of the norms of queries and keys: a weight for
        each column of a head, or of all heads"""
        return where(
            q.query_key_norms > 1,
            q.query_size + q.key_value_size,
            2 * q.query_key_norms * q.head_columns,
        )

    def latent_parameters(q):
        r"""\Psi_\text{latent} | parameters | weights of latent attention that belong to no head:
        they make the latents, each of which has a norm, too, and the columns of keys with
        positions"""
        return q.hidden * (q.query_latent + q.key_value_latent + q.rotary_columns)

    def latent_head_parameters(q):
        r"""\Psi_\text{heads} | parameters | weights of latent attention that belong to heads: they
        make queries, keys and values from the latents, and the output"""
        return q.heads * (
            where(q.query_latent > 0, q.query_latent, q.hidden)
            * (q.head_columns + q.rotary_columns)
            + q.key_value_latent * (q.head_columns + q.value_columns)
            + q.value_columns * q.hidden
        )


class Parameters(
    BOOK.section(
        source=_GPT, measured_by="tests/engines/test_formulas.py::test_counts_of_each_part"
    )
):
    def attention_parameters(q):
        r"""\Psi_\text{attn} | parameters | parameters of one attention: queries and output
        projection, keys and values, their biases, and norms of queries and keys"""
        return (
            where(
                q.key_value_latent > 0,
                q.latent_parameters
                + q.latent_head_parameters
                + q.query_latent
                + q.key_value_latent,
                2 * q.hidden * (q.query_size + q.key_value_size),
            )
            + q.query_key_value_biases * (q.query_size + q.key_value_size)
            + q.key_biases * q.key_value_size
            + q.biases * q.hidden
            + q.query_key_norm_parameters
        )

    def mlp_parameters(q):
        r"""\Psi_\text{mlp} | parameters | parameters of one MLP, or of one expert: up, down, and
        the gate if there is one"""
        return (2 + q.gated_mlp) * q.hidden * q.feed_forward + q.biases * (
            (1 + q.gated_mlp) * q.feed_forward + q.hidden
        )

    def norm_parameters(q):
        r"""\Psi_\text{norm} | parameters | parameters of one norm: a weight, and a bias in
        LayerNorm"""
        return (1 + q.norm_biases) * q.hidden

    @BOOK.own(measured_by="tests/engines/test_model_config.py::test_published_counts")
    def layer_mlp_parameters(q):
        r"""\Psi_\text{mlps} | parameters | parameters of a layer's MLP, or of all its experts,
        those of every token among them, and of the router, which has a column for each expert"""
        return (
            where(q.experts > 0, q.experts * (q.mlp_parameters + q.hidden), q.mlp_parameters)
            + (2 + q.gated_mlp) * q.hidden * q.shared_feed_forward
            + where(
                q.shared_feed_forward > 0,
                q.biases * ((1 + q.gated_mlp) * q.shared_feed_forward + q.hidden),
                0,
            )
        )

    @BOOK.own(measured_by="tests/engines/test_model_config.py::test_published_counts")
    def dense_mlp_parameters(q):
        r"""\Psi_\text{dense} | parameters | parameters of the MLP of a layer that has no experts in
        a model of experts"""
        return (2 + q.gated_mlp) * q.hidden * q.dense_feed_forward + q.biases * (
            (1 + q.gated_mlp) * q.dense_feed_forward + q.hidden
        )

    def layer_parameters(q):
        r"""\Psi_\ell | parameters | parameters of one layer; 12h² + 13h in GPT-2"""
        return (
            q.attention_parameters + q.layer_mlp_parameters + q.norms_per_layer * q.norm_parameters
        )

    @BOOK.own(measured_by="tests/engines/test_model_config.py::test_published_counts")
    def dense_layer_parameters(q):
        r"""\Psi_\ell^\text{dense} | parameters | parameters of a layer that has no experts in a
        model of experts"""
        return (
            q.attention_parameters + q.dense_mlp_parameters + q.norms_per_layer * q.norm_parameters
        )

    def stack_parameters(q):
        r"""\Psi_L | parameters | parameters of all layers, the first of which may have no
        experts"""
        return (
            q.layers - q.dense_layers
        ) * q.layer_parameters + q.dense_layers * q.dense_layer_parameters

    def embedding_parameters(q):
        r"""\Psi_\text{embed} | parameters | parameters of the token table and, where positions are
        learned, of the position table"""
        return (q.vocabulary + q.learned_positions * q.max_sequence) * q.hidden

    def head_parameters(q):
        r"""\Psi_\text{head} | parameters | parameters the head adds: none when it shares the token
        table's weight"""
        return (1 - q.tied_head) * q.vocabulary * q.hidden

    @BOOK.own(source="Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama)", least=1)
    def parameters(q):
        r"""\Psi | parameters | parameters of the whole model: layers, tables, the last norm, the
        head"""
        return q.stack_parameters + q.embedding_parameters + q.norm_parameters + q.head_parameters

    @BOOK.own(
        source="config.json of published models",
        measured_by="tests/engines/test_model_config.py::test_active_parameters",
    )
    def active_parameters(q):
        r"""\Psi_\text{act} | parameters | parameters that one token goes through: all but the
        parameters of the experts that the token skips"""
        return (
            q.parameters
            - (q.layers - q.dense_layers) * (q.experts - q.experts_per_token) * q.mlp_parameters
        )

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_parameter_tensors")
    def layer_parameter_tensors(q):
        r"""n_\text{tensors}^\ell | tensors | parameter tensors of a layer of a dense model: four
        weights (five with a gate) and its norms, each with its bias"""
        return (
            4
            + q.gated_mlp
            + q.query_key_value_biases
            + (3 + q.gated_mlp) * q.biases
            + q.norms_per_layer * (1 + q.norm_biases)
            + 2 * minimum(q.query_key_norms, 1)
        )

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_parameter_tensors")
    def parameter_tensors(q):
        r"""n_\text{tensors} | tensors | parameter tensors of a dense model: those of its layers,
        the two tables, the last norm, the head"""
        return (
            (1 - q.tied_head)
            + q.layers * q.layer_parameter_tensors
            + 2
            + q.learned_positions
            + q.norm_biases
        )

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_matmul_flops")
    def stack_matrix_parameters(q):
        r"""\Psi_\text{mat}^L | parameters | elements of the weights of all layers that a token is
        multiplied with: no biases or norms; only the experts that the token goes through, and the
        router"""
        return (
            q.layers
            * where(
                q.key_value_latent > 0,
                q.latent_parameters + q.latent_head_parameters,
                2 * q.hidden * (q.query_size + q.key_value_size),
            )
            + (q.layers - q.dense_layers)
            * q.hidden
            * (
                (2 + q.gated_mlp)
                * (
                    where(q.experts > 0, q.experts_per_token, 1) * q.feed_forward
                    + q.shared_feed_forward
                )
                + q.experts
            )
            + q.dense_layers * q.hidden * (2 + q.gated_mlp) * q.dense_feed_forward
        )

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_matmul_flops")
    def matrix_parameters(q):
        r"""\Psi_\text{mat} | parameters | elements of the weights that a token is multiplied with:
        those of all layers, and the head even when it is tied; no tables"""
        return q.stack_matrix_parameters + q.vocabulary * q.hidden

    @BOOK.own(measured_by="tests/engines/test_model_config.py::test_flops_of_latent_attention")
    def attended_columns(q):
        r"""h_\text{qv} | count | columns of the queries and of the values of all heads, by which
        scores are made and used"""
        return where(
            q.key_value_latent > 0,
            q.heads * (q.head_columns + q.rotary_columns + q.value_columns),
            2 * q.query_size,
        )
