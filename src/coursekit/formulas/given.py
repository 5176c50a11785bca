"""Quantities that the reader gives in more than one chapter and no formula computes, with symbol,
unit, meaning and range, and the rules between them. A topic declares its own beside its formulas.
"""

from .registry import BOOK
from .subset import equal, floor_div, maximum, minimum, where

# --- the model ------------------------------------------------------------------------------------
BOOK.given(
    r"""
layers | L | count | transformer layers
hidden | h | count | hidden size: the length of one token's vector
heads | a | count | attention heads
head_size | h_\text{own} | count, from 0, usually 0 | columns of one attention head, if the model
    sets them itself; 0 for hidden size / heads
key_value_heads | a_\text{kv} | count | heads of keys and values; fewer than the attention heads in
    grouped-query attention
feed_forward | f | count | inner size of the MLP; 4h in GPT-2
vocabulary | V | count | size of the vocabulary
max_sequence | s_\text{max} | count | longest sequence that the position table has rows for
sequence | s | count | tokens in one sequence
learned_positions | 1_\text{pos} | count, from 0 to 1 | 1 if positions are a learned table, 0 if
    they are computed (rotary)
biases | 1_\text{bias} | count, from 0 to 1 | 1 if linear layers and norms have a bias (LayerNorm),
    0 if not (RMSNorm)
gated_mlp | 1_\text{gate} | count, from 0 to 1 | 1 if the MLP has a gate, as SwiGLU does: three
    matrices instead of two
tied_head | 1_\text{tied} | count, from 0 to 1 | 1 if the head shares the embedding's weight
query_key_norms | n_\text{qk} | count, from 0 to 2, usually 0 | norms of queries and of keys: 0 for
    none, 1 with a weight for each column of a head (Qwen3, Gemma 3), 2 with a weight for each
    column of all heads (OLMo 2)
norms_per_layer | n_\text{norm} | count, usually 2 | norms of the hidden size in a layer: 2 in GPT-2
    and Llama, 4 in Gemma 2
experts | n_\text{exp} | count, from 0, usually 0 | experts of a layer, each an MLP of its own; 0 in
    a dense model
experts_per_token | n_\text{exp}^\text{tok} | count, from 0, usually 0 | experts that one token goes
    through; 0 in a dense model
shared_feed_forward | f_\text{all} | count, from 0, usually 0 | inner size of the experts that every
    token goes through, all of them together; 0 without any
dense_layers | L_\text{dense} | count, from 0, usually 0 | first layers that have an MLP instead of
    experts (DeepSeek-V3)
dense_feed_forward | f_\text{dense} | count, from 0, usually 0 | inner size of the MLP of these
    layers
key_value_latent | r_\text{kv} | count, from 0, usually 0 | columns from which latent attention
    makes keys and values; 0 where they are made from the hidden size
query_latent | r_\text{q} | count, from 0, usually 0 | columns from which latent attention makes
    queries; 0 where they are made from the hidden size
rotary_columns | h_\text{rot} | count, from 0, usually 0 | columns with positions that latent
    attention adds to each head's queries, and to keys once for all heads
value_columns | h_\text{val} | count, from 0, usually 0 | columns of a head's values in latent
    attention
"""
)

# --- the recipe: bytes of one element, and how many -----------------------------------------------
BOOK.given(
    r"""
parameter_element_bytes | \beta_\text{param} | bytes | bytes of one element of a parameter
gradient_element_bytes | \beta_\text{grad} | bytes | bytes of one element of a gradient
master_element_bytes | \beta_\text{master} | bytes, from 0 | bytes of one element of the optimizer's
    master copy; 0 without a master copy
optimizer_moments | n_\text{mom} | count, from 0 | tensors that an optimizer keeps for each
    parameter: 2 in Adam, 1 with momentum, 0 in plain SGD
moment_element_bytes | \beta_\text{mom} | bytes | bytes of one element of an optimizer's moment
step_counter_element_bytes | \beta_\text{step} | bytes, from 0 | bytes of the step counter that
    PyTorch's Adam keeps for each parameter tensor; 0 for SGD
residual_element_bytes | \beta_\text{res} | bytes | bytes of one element of the residual stream and
    of a norm's input
compute_element_bytes | \beta_\text{prod} | bytes | bytes of one element that a matrix product reads
    or writes; under autocast fewer than those of a parameter's element
"""
)

# --- the step -------------------------------------------------------------------------------------
BOOK.given(
    r"""
microbatch | b | count | sequences in one microbatch
accumulation_steps | k | count, usually 1 | microbatches whose gradients are added up before the
    optimizer steps
step_sequences | b_\text{step} | count | sequences that one rank takes in a step, in all its
    microbatches
fused_attention | 1_\text{fused} | count, from 0 to 1, usually 1 | 1 if attention is one kernel that
    never stores its scores, 0 if not
dropout | \pi_\text{drop} | fraction, from 0 to 1, usually 0 | share of the elements that dropout
    zeroes
first_step | 1_\text{first} | count, from 0 to 1, usually 0 | 1 in the first step, which creates the
    optimizer states; 0 in every later step
optimizer_mode | i_\text{mode} | count, from 0 to 2, usually 1 | how PyTorch's optimizer runs: 0 a
    loop over the tensors, 1 foreach, 2 fused
"""
)

# --- the machine ----------------------------------------------------------------------------------
BOOK.given(
    r"""
gpus | n | GPUs | GPUs that train together
data_parallel | d | count | data-parallel degree: copies of the model
tensor_parallel | t | count, usually 1 | tensor-parallel degree
pipeline_parallel | p | count, usually 1 | pipeline-parallel degree
gpu_memory_bytes | M_\text{card} | bytes | memory of one GPU, as the GPU reports it to a program
flops_per_second | F | FLOP/s, above 0 | floating-point operations one GPU can do in a second: its
    datasheet's dense figure
utilisation | \eta | fraction, above 0 to 1 | share of the datasheet's rate that the training run
    achieves
tokens | D | tokens | tokens the model is trained on
memory_bytes_per_second | B_\text{mem} | bytes/s, above 0 | bandwidth of one GPU's memory
"""
)

# --- the link -------------------------------------------------------------------------------------
BOOK.given(
    r"""
ranks | N | count, to 1048576 | ranks of the group that communicates
rank | r | count, from 0 to 1048576, usually 0 | one rank of the group, counted from 0
ranks_per_node | N_\text{node} | count, to 1048576 | ranks of the group on one node
latency_seconds | \alpha | seconds, from 0 | time of a message without bytes, from rank to rank
link_bytes_per_second | B | bytes/s, above 0 | bandwidth of the link from rank to rank, or node to
    node, each way
forward_seconds | \tau_\text{fwd} | seconds, from 0 | time of the forward pass
backward_seconds | \tau_\text{bwd} | seconds, from 0 | time of the backward pass, without
    communication
update_seconds | \tau_\text{upd} | seconds, from 0 | time of the optimizer's step
"""
)


@BOOK.rule(
    "heads = {heads} does not divide hidden = {hidden}: every head takes hidden / heads columns, so"
    " heads must divide hidden.",
    marks="heads",
    head_size=0,
)
def heads_divide_hidden(q):
    return equal(where(q.head_size > 0, q.hidden, q.heads * floor_div(q.hidden, q.heads)), q.hidden)


@BOOK.rule(
    "experts_per_token = {experts_per_token} of experts = {experts}: a token goes through at least"
    " one expert and at most all of them, and through none where there are none.",
    marks="experts_per_token",
)
def a_token_has_experts(q):
    return equal(
        maximum(minimum(q.experts_per_token, q.experts), where(q.experts > 0, 1, 0)),
        q.experts_per_token,
    )


@BOOK.rule(
    "dense_layers = {dense_layers} of layers = {layers} with dense_feed_forward ="
    " {dense_feed_forward}, experts = {experts}: layers without experts are at most all layers of a"
    " model of experts, and their MLP has a size; give both, or neither.",
    marks="dense_layers",
)
def dense_layers_have_a_size(q):
    return equal(
        maximum(minimum(q.dense_feed_forward, 1), q.dense_layers),
        minimum(
            where(q.dense_feed_forward > 0, where(q.experts > 0, q.dense_layers, 0), 0), q.layers
        ),
    )


@BOOK.rule(
    "key_value_latent = {key_value_latent} with query_latent = {query_latent}, value_columns ="
    " {value_columns}: latent attention makes values of a size of their own from the latent; give"
    " key_value_latent and value_columns, or none of these.",
    marks="key_value_latent",
)
def latents_have_values(q):
    return equal(
        minimum(q.key_value_latent, 1) + minimum(q.value_columns, 1),
        2 * minimum(q.key_value_latent + q.query_latent, 1),
    )


@BOOK.rule(
    "key_value_heads = {key_value_heads} does not divide heads = {heads}: each key-value head"
    " serves the same number of heads.",
    marks="key_value_heads",
)
def key_value_heads_divide_heads(q):
    return equal(q.key_value_heads * floor_div(q.heads, q.key_value_heads), q.heads)


@BOOK.rule(
    "data_parallel = {data_parallel} copies of {gpus_per_copy} GPUs each do not make gpus = {gpus}:"
    " the degrees must multiply to the number of GPUs.",
    marks="data_parallel",
)
def degrees_fill_the_gpus(q):
    return equal(q.data_parallel * q.gpus_per_copy, q.gpus)
