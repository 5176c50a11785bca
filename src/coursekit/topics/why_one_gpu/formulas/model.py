"""How many parameters a GPT has: counted tensor by tensor, as gpt.py builds it. Weights first, then
biases and norms."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import floor_div, where

_GPT = "counted from gpt.py"


formula = BOOK.section(
    source=_GPT, measured_by="tests/engines/test_formulas.py::test_counts_of_each_part"
)


@formula(
    r"h_\text{head}", "count", measured_by="tests/engines/test_formulas.py::test_sizes_of_heads"
)
def head_columns(head_size, hidden, heads):
    """columns of one head: hidden / heads, unless the model gives its own number"""
    return where(head_size > 0, head_size, floor_div(hidden, heads))


@formula(r"h_\text{q}", "count", measured_by="tests/engines/test_formulas.py::test_sizes_of_heads")
def query_size(heads, head_columns):
    """columns of the queries of all heads: h, unless the model sets the number of columns of
    a head itself"""
    return heads * head_columns


@formula(r"h_\text{kv}", "count", measured_by="tests/engines/test_formulas.py::test_sizes_of_heads")
def key_value_size(key_value_heads, head_columns):
    """columns of the keys, and as many of the values: the hidden size, unless several heads share
    keys and values"""
    return key_value_heads * head_columns


formula = BOOK.section(
    source="config.json of published models",
    measured_by="tests/engines/test_model_config.py::test_published_counts",
)


@formula(r"1_\text{qkv}", "count", choice=True)
def query_key_value_biases(biases):
    """1 if the product that makes queries, keys and values has a bias; in Qwen2, only this product
    has one"""
    return biases


@formula(r"1_\text{kb}", "count", choice=True)
def key_biases(query_key_value_biases):
    """1 if keys have a bias; the softmax cancels it, so some models leave it out"""
    return query_key_value_biases


@formula(r"1_\text{nb}", "count", choice=True)
def norm_biases(biases):
    """1 if norms have a bias besides their weight"""
    return biases


formula = BOOK.section(
    source=_GPT, measured_by="tests/engines/test_formulas.py::test_counts_of_each_part"
)


@formula(r"\Psi_\text{attn}", "parameters")
def attention_parameters(
    hidden,
    query_size,
    key_value_size,
    query_key_value_biases,
    key_biases,
    biases,
    query_key_norms,
    head_columns,
):
    """parameters of one attention: queries and output projection, keys and values, their biases,
    and norms of queries and keys"""
    return (
        2 * hidden * (query_size + key_value_size)
        + query_key_value_biases * (query_size + key_value_size)
        + key_biases * key_value_size
        + biases * hidden
        + 2 * query_key_norms * head_columns
    )


@formula(r"\Psi_\text{mlp}", "parameters")
def mlp_parameters(hidden, feed_forward, gated_mlp, biases):
    """parameters of one MLP, or of one expert: up, down, and the gate if there is one"""
    return (2 + gated_mlp) * hidden * feed_forward + biases * (
        (1 + gated_mlp) * feed_forward + hidden
    )


@formula(r"\Psi_\text{norm}", "parameters")
def norm_parameters(hidden, norm_biases):
    """parameters of one norm: a weight, and a bias in LayerNorm"""
    return (1 + norm_biases) * hidden


@formula(
    r"\Psi_\text{mlps}",
    "parameters",
    measured_by="tests/engines/test_model_config.py::test_published_counts",
)
def layer_mlp_parameters(experts, mlp_parameters, hidden):
    """parameters of a layer's MLP, or of all its experts and of the router, which has a column for
    each expert"""
    return where(experts > 0, experts * (mlp_parameters + hidden), mlp_parameters)


@formula(r"\Psi_\ell", "parameters")
def layer_parameters(attention_parameters, layer_mlp_parameters, norms_per_layer, norm_parameters):
    """parameters of one layer; 12h² + 13h in GPT-2"""
    return attention_parameters + layer_mlp_parameters + norms_per_layer * norm_parameters


@formula(r"\Psi_\text{embed}", "parameters")
def embedding_parameters(vocabulary, learned_positions, max_sequence, hidden):
    """parameters of the token table and, where positions are learned, of the position table"""
    return (vocabulary + learned_positions * max_sequence) * hidden


@formula(r"\Psi_\text{head}", "parameters")
def head_parameters(vocabulary, hidden, tied_head):
    """parameters the head adds: none when it shares the token table's weight"""
    return (1 - tied_head) * vocabulary * hidden


@formula(
    r"\Psi",
    "parameters",
    source="Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama)",
    least=1,
)
def parameters(layers, layer_parameters, embedding_parameters, norm_parameters, head_parameters):
    """parameters of the whole model: layers, tables, the last norm, the head"""
    return layers * layer_parameters + embedding_parameters + norm_parameters + head_parameters


@formula(
    r"\Psi_\text{act}",
    "parameters",
    source="config.json of published models",
    measured_by="tests/engines/test_model_config.py::test_active_parameters",
)
def active_parameters(parameters, layers, experts, experts_per_token, mlp_parameters):
    """parameters that one token goes through: all but the parameters of the experts that the token
    skips"""
    return parameters - layers * (experts - experts_per_token) * mlp_parameters


@formula(
    r"n_\text{tensors}",
    "tensors",
    measured_by="tests/engines/test_formulas.py::test_parameter_tensors",
)
def parameter_tensors(
    layers,
    gated_mlp,
    biases,
    query_key_value_biases,
    norms_per_layer,
    norm_biases,
    query_key_norms,
    learned_positions,
    tied_head,
):
    """parameter tensors of a dense model: four weights a layer (five with a gate) and its norms,
    the two tables, the last norm, the head; each with its bias"""
    return (
        (1 - tied_head)
        + layers
        * (
            4
            + gated_mlp
            + query_key_value_biases
            + (3 + gated_mlp) * biases
            + norms_per_layer * (1 + norm_biases)
            + 2 * query_key_norms
        )
        + 2
        + learned_positions
        + norm_biases
    )


@formula(
    r"\Psi_\text{mat}",
    "parameters",
    measured_by="tests/engines/test_formulas.py::test_matmul_flops",
)
def matrix_parameters(
    layers,
    hidden,
    query_size,
    key_value_size,
    feed_forward,
    gated_mlp,
    experts,
    experts_per_token,
    vocabulary,
):
    """elements of the weights that a token is multiplied with: no biases, norms or tables; only the
    experts that the token goes through; the head even when it is tied"""
    return (
        layers
        * (
            2 * hidden * (query_size + key_value_size)
            + where(experts > 0, experts_per_token, 1) * (2 + gated_mlp) * hidden * feed_forward
            + experts * hidden
        )
        + vocabulary * hidden
    )
