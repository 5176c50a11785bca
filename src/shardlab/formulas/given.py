"""What the reader gives in more than one chapter: quantities that no formula computes, with symbol,
unit, meaning and range, and the rules between them. A topic declares its own beside its formulas.
"""

import math

from .registry import BOOK
from .subset import equal, floor_div

SWITCH = dict(least=0, most=1)
RATE = dict(least=0, above=True, most=math.inf)
TIME = dict(least=0, most=math.inf)

# --- the model ------------------------------------------------------------------------------------
BOOK.quantity("layers", "L", "count", "transformer layers")
BOOK.quantity("hidden", "h", "count", "hidden size: the length of one token's vector")
BOOK.quantity("heads", "a", "count", "attention heads")
BOOK.quantity(
    "key_value_heads",
    r"a_\text{kv}",
    "count",
    "heads of keys and values; fewer than heads in grouped-query attention",
)
BOOK.quantity("feed_forward", "f", "count", "inner size of the MLP; 4h in GPT-2")
BOOK.quantity("vocabulary", "V", "count", "size of the vocabulary")
BOOK.quantity(
    "max_sequence", r"s_\text{max}", "count", "longest sequence the position table has a row for"
)
BOOK.quantity("sequence", "s", "count", "tokens in one sequence")
BOOK.quantity(
    "learned_positions",
    r"1_\text{pos}",
    "count",
    "1 if positions are a learned table, 0 if they are computed (rotary)",
    **SWITCH,
)
BOOK.quantity(
    "biases",
    r"1_\text{bias}",
    "count",
    "1 if linear layers and norms have a bias (LayerNorm), 0 if not (RMSNorm)",
    **SWITCH,
)
BOOK.quantity(
    "gated_mlp",
    r"1_\text{gate}",
    "count",
    "1 if the MLP has a gate, as SwiGLU does: three matrices in the place of two",
    **SWITCH,
)
BOOK.quantity(
    "tied_head", r"1_\text{tied}", "count", "1 if the head shares the embedding's weight", **SWITCH
)

# --- the recipe: bytes of one element, and how many -----------------------------------------------
BOOK.quantity(
    "parameter_element_bytes", r"\beta_\text{param}", "bytes", "bytes of one element of a parameter"
)
BOOK.quantity(
    "gradient_element_bytes", r"\beta_\text{grad}", "bytes", "bytes of one element of a gradient"
)
BOOK.quantity(
    "master_element_bytes",
    r"\beta_\text{master}",
    "bytes",
    "bytes of one element of the master copy the optimizer updates; 0 without one",
    least=0,
)
BOOK.quantity(
    "optimizer_moments",
    r"n_\text{mom}",
    "count",
    "tensors an optimizer keeps per parameter: Adam 2, momentum 1, plain SGD 0",
    least=0,
)
BOOK.quantity(
    "moment_element_bytes",
    r"\beta_\text{mom}",
    "bytes",
    "bytes of one element of an optimizer's tensor",
)
BOOK.quantity(
    "step_counter_element_bytes",
    r"\beta_\text{step}",
    "bytes",
    "bytes of the step counter that PyTorch's Adam keeps for each parameter tensor; 0 for SGD",
    least=0,
)

BOOK.quantity(
    "residual_element_bytes",
    r"\beta_\text{res}",
    "bytes",
    "bytes of one element of the residual stream, and of what norms take",
)
BOOK.quantity(
    "compute_element_bytes",
    r"\beta_\text{prod}",
    "bytes",
    "bytes of one element of what matrix products take and give; under autocast fewer than a"
    " parameter's",
)

# --- the step -------------------------------------------------------------------------------------
BOOK.quantity("microbatch", "b", "count", "sequences in one microbatch")
BOOK.quantity(
    "accumulation_steps",
    "k",
    "count",
    "microbatches whose gradients are added up before the optimizer steps",
)
BOOK.quantity(
    "fused_attention",
    r"1_\text{fused}",
    "count",
    "1 if attention is one kernel that never stores its scores, 0 if not",
    **SWITCH,
)
BOOK.quantity(
    "dropout",
    r"p_\text{drop}",
    "fraction",
    "share of the elements that dropout zeroes",
    least=0,
    most=1,
)
BOOK.quantity(
    "first_step",
    r"1_\text{first}",
    "count",
    "1 in the first step, which makes the optimizer's states, 0 in every later one",
    **SWITCH,
)
BOOK.quantity(
    "optimizer_mode",
    r"i_\text{mode}",
    "count",
    "how PyTorch's optimizer runs: 0 a loop over the tensors, 1 foreach, 2 fused",
    least=0,
    most=2,
)

# --- the machine ----------------------------------------------------------------------------------
BOOK.quantity("gpus", "n", "GPUs", "GPUs that train together")
BOOK.quantity("data_parallel", "d", "count", "data-parallel degree: copies of the model")
BOOK.quantity("tensor_parallel", "t", "count", "tensor-parallel degree")
BOOK.quantity("pipeline_parallel", "p", "count", "pipeline-parallel degree")
BOOK.quantity(
    "gpu_memory_bytes",
    r"M_\text{card}",
    "bytes",
    "memory of one GPU, as its datasheet prints it (GB = 10^9 bytes)",
)
BOOK.quantity(
    "flops_per_second",
    r"F",
    "FLOP/s",
    "floating-point operations one GPU can do in a second: its datasheet's dense figure",
    least=0,
    above=True,
    most=math.inf,
)
BOOK.quantity(
    "utilisation",
    r"\eta",
    "fraction",
    "share of that figure the training run achieves",
    least=0,
    above=True,
    most=1,
)
BOOK.quantity("tokens", "D", "tokens", "tokens the model is trained on")
BOOK.quantity(
    "memory_bytes_per_second", r"B_\text{mem}", "bytes/s", "bandwidth of one GPU's memory", **RATE
)


# --- the link -------------------------------------------------------------------------------------
BOOK.quantity("ranks", "N", "count", "ranks of the group that communicates", most=2**20)
BOOK.quantity("rank", "r", "count", "one rank of them, from 0", least=0, most=2**20)
BOOK.quantity(
    "ranks_per_node", r"N_\text{node}", "count", "ranks of the group on one node", most=2**20
)
BOOK.quantity(
    "latency_seconds",
    r"\alpha",
    "seconds",
    "time of a message without bytes, from rank to rank",
    **TIME,
)
BOOK.quantity(
    "link_bytes_per_second",
    "B",
    "bytes/s",
    "bandwidth of the link from rank to rank, or node to node, each way",
    **RATE,
)
BOOK.quantity("forward_seconds", r"\tau_\text{fwd}", "seconds", "time of the forward pass", **TIME)
BOOK.quantity(
    "backward_seconds",
    r"\tau_\text{bwd}",
    "seconds",
    "time of the backward pass, without communication",
    **TIME,
)
BOOK.quantity(
    "update_seconds", r"\tau_\text{upd}", "seconds", "time of the optimizer's step", **TIME
)


@BOOK.rule(
    "heads = {heads} does not divide hidden = {hidden}: every head takes hidden / heads columns, so"
    " heads must divide hidden.",
    marks="heads",
)
def heads_divide_hidden(hidden, heads):
    return equal(heads * floor_div(hidden, heads), hidden)


@BOOK.rule(
    "key_value_heads = {key_value_heads} does not divide heads = {heads}: each key-value head"
    " serves the same number of heads.",
    marks="key_value_heads",
)
def key_value_heads_divide_heads(heads, key_value_heads):
    return equal(key_value_heads * floor_div(heads, key_value_heads), heads)


@BOOK.rule(
    "data_parallel = {data_parallel} copies of {gpus_per_copy} GPUs each do not make gpus = {gpus}:"
    " the degrees must multiply to the number of GPUs.",
    marks="data_parallel",
)
def degrees_fill_the_gpus(gpus, data_parallel, gpus_per_copy):
    return equal(data_parallel * gpus_per_copy, gpus)
