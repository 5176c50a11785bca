"""How many parameters a GPT has: counted tensor by tensor, as gpt.py builds it. Weights first, then
biases and norms."""

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import floor_div

_GPT = "counted from gpt.py"


formula = BOOK.section(
    source=_GPT, measured_by="tests/engines/test_formulas.py::test_counts_of_each_part"
)


@formula(
    r"h_\text{head}", "count", measured_by="tests/engines/test_formulas.py::test_sizes_of_heads"
)
def head_size(hidden, heads):
    """columns of one head"""
    return floor_div(hidden, heads)


@formula(r"h_\text{kv}", "count", measured_by="tests/engines/test_formulas.py::test_sizes_of_heads")
def key_value_size(key_value_heads, head_size):
    """columns that keys take, and values as many: the whole hidden size unless heads share them"""
    return key_value_heads * head_size


@formula(r"\Psi_\text{attn}", "parameters")
def attention_parameters(hidden, key_value_size, biases):
    """parameters of one attention: queries and output projection, keys and values, and their
    biases"""
    return 2 * hidden * (hidden + key_value_size) + 2 * biases * (hidden + key_value_size)


@formula(r"\Psi_\text{mlp}", "parameters")
def mlp_parameters(hidden, feed_forward, gated_mlp, biases):
    """parameters of one MLP: up, down, and the gate if there is one"""
    return (2 + gated_mlp) * hidden * feed_forward + biases * (
        (1 + gated_mlp) * feed_forward + hidden
    )


@formula(r"\Psi_\text{norm}", "parameters")
def norm_parameters(hidden, biases):
    """parameters of one norm: a weight, and a bias in LayerNorm"""
    return (1 + biases) * hidden


@formula(r"\Psi_\ell", "parameters")
def layer_parameters(attention_parameters, mlp_parameters, norm_parameters):
    """parameters of one layer; 12h² + 13h in GPT-2"""
    return attention_parameters + mlp_parameters + 2 * norm_parameters


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
    r"n_\text{tensors}",
    "tensors",
    measured_by="tests/engines/test_formulas.py::test_parameter_tensors",
)
def parameter_tensors(layers, gated_mlp, biases, learned_positions, tied_head):
    """parameter tensors: six weights a layer (seven with a gate), the two tables, the last norm,
    the head; each with its bias"""
    return (
        (1 - tied_head)
        + layers * (6 + gated_mlp + 6 * biases + gated_mlp * biases)
        + 2
        + learned_positions
        + biases
    )


@formula(
    r"\Psi_\text{mat}",
    "parameters",
    measured_by="tests/engines/test_formulas.py::test_matmul_flops",
)
def matrix_parameters(layers, hidden, key_value_size, feed_forward, gated_mlp, vocabulary):
    """elements of the weights that a token is multiplied with: no biases, norms or tables, but the
    head even when it is tied"""
    return (
        layers * (2 * hidden * (hidden + key_value_size) + (2 + gated_mlp) * hidden * feed_forward)
        + vocabulary * hidden
    )
