"""Data parallelism: messages and bytes of a step, and how much of their time backward hides.
Messages and bytes are exact. Times are those of events (timeline.py): a bucket leaves when its
gradients are there and the bucket before it is done, around one ring.

What is counted is shardlab/data_parallel/ladder.py. Where not all parameters are trained, give
`parameter_tensors` and `gradient_bytes` of those that are. The buckets of layers count as equal;
for another list give `equal_buckets`, `equal_bucket_bytes`, `last_bytes` and `last_messages`.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, floor_div, maximum, minimum, ring_pass, where

# --- what the reader gives

BOOK.given(
    r"""
bucket_bytes | S_\text{bkt} | bytes, usually 26214400 | bytes of gradients at which a bucket is
    closed and may leave
strong_scaling | 1_\text{strong} | count, from 0 to 1, usually 0 | 1 if the ranks share the batch
    of one GPU, 0 if each rank has a microbatch as large as that of one GPU
"""
)

_OURS = "shardlab.data_parallel"
_LI = "Li et al. 2020, section 3.2"
_RING = "Patarasuk and Yuan 2009"
_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_each_kind_sends"
_RING_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_a_ring_sends"
_BUCKETS = "tests/data_parallelism/test_data_parallel_formulas.py::test_number_of_buckets"
_LIST = "tests/data_parallelism/test_data_parallel_time.py::test_the_list_of_a_model"
_EVENTS = "tests/data_parallelism/test_data_parallel_time.py::test_closed_form_is_the_simulation"
_SECONDS = "tests/data_parallelism/test_data_parallel_formulas.py::test_seconds"
_STEP = "tests/data_parallelism/test_data_parallel_formulas.py::test_step"


# --- what is sent ---------------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_SENT)


@formula(r"S_\text{used}", "bytes")
def used_flag_bytes(parameter_tensors, gradient_element_bytes):
    """bytes of the flags that say which parameters a rank has used: one element for each tensor"""
    return gradient_element_bytes * parameter_tensors


@formula(r"S_\text{step}", "bytes")
def reduced_bytes(gradient_bytes, used_flag_bytes):
    """bytes that a rank brings to the all-reduces of a step, however they are cut into messages"""
    return gradient_bytes + used_flag_bytes


@formula(r"S_\text{every}", "bytes")
def reduced_bytes_without_no_sync(reduced_bytes, accumulation_steps):
    """bytes of a step in which every microbatch sends its gradients, instead of only the last"""
    return accumulation_steps * reduced_bytes


@formula(r"n_\text{srv}", "count")
def server_messages(data_parallel, rank, parameter_tensors):
    """messages that a rank sends in a step with a parameter server: rank 0 sends its parameters to
    each other rank, and each other rank sends its gradients"""
    return where(rank < 1, (data_parallel - 1) * parameter_tensors, parameter_tensors)


@formula(r"Q_\text{srv}", "bytes")
def server_sent_bytes(data_parallel, rank, parameter_bytes, reduced_bytes):
    """bytes that a rank sends in a step with a parameter server"""
    return where(rank < 1, (data_parallel - 1) * parameter_bytes, reduced_bytes)


@formula(r"Q_\text{in}", "bytes")
def server_received_bytes(data_parallel, rank, parameter_bytes, reduced_bytes):
    """bytes that a rank receives in a step with a parameter server: at rank 0 they grow with the
    ranks"""
    return where(rank < 1, (data_parallel - 1) * reduced_bytes, parameter_bytes)


@formula(r"n_\text{most}", "count", source=_LI, measured_by=_BUCKETS, least=1)
def gradient_buckets_at_most(parameter_tensors, gradient_bytes, bucket_bytes):
    """most all-reduces of a step: a bucket is closed once it holds its bytes, and it holds at least
    one tensor. Exact where tensors are small compared with a bucket"""
    return minimum(parameter_tensors, ceil_div(gradient_bytes, bucket_bytes))


@formula(r"Q_\text{step}", "bytes", source=_RING, measured_by=_RING_SENT)
def data_parallel_sent_bytes(data_parallel, reduced_bytes):
    """bytes that a rank sends in a step around a ring: for many ranks about twice the gradients,
    however many there are"""
    return ceil_div(2 * (data_parallel - 1) * reduced_bytes, data_parallel)


# --- how long it takes after backward -------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_SECONDS)


@formula(r"\tau_\text{srv}", "seconds")
def server_seconds(
    data_parallel,
    parameter_tensors,
    latency_seconds,
    parameter_bytes,
    reduced_bytes,
    link_bytes_per_second,
):
    """time in which the server receives all gradients and sends all parameters, one rank after
    another"""
    return 2 * (data_parallel - 1) * parameter_tensors * latency_seconds + (data_parallel - 1) * (
        (parameter_bytes + reduced_bytes) / link_bytes_per_second
    )


@formula(r"\tau_\text{each}", "seconds")
def per_tensor_seconds(
    data_parallel, parameter_tensors, latency_seconds, reduced_bytes, link_bytes_per_second
):
    """time of one all-reduce for each parameter tensor: every tensor pays the latency of a ring"""
    return 2 * ring_pass(
        data_parallel, parameter_tensors * latency_seconds, reduced_bytes / link_bytes_per_second
    )


# --- the buckets: a head of its own, equal buckets of layers, and what comes last -----------------
formula = BOOK.section(source=_OURS, measured_by=_LIST)


@formula(r"S_\text{layers}", "bytes")
def layers_gradient_bytes(layers, layer_parameters, gradient_element_bytes):
    """bytes of the gradients of all layers"""
    return gradient_element_bytes * layers * layer_parameters


@formula(r"S_\text{table}", "bytes")
def table_gradient_bytes(vocabulary, hidden, gradient_element_bytes):
    """bytes of the gradient of the token table, which backward reaches last of all. A tied head
    adds to this gradient early but cannot send it"""
    return gradient_element_bytes * vocabulary * hidden


@formula(r"S_\text{first}", "bytes")
def head_bucket_bytes(head_parameters, gradient_element_bytes):
    """bytes of the gradient of a head with a weight of its own, which leaves first; 0 where the
    head is tied"""
    return gradient_element_bytes * head_parameters


@formula(r"n_\text{mat}", "count")
def layer_matrices(layers, gated_mlp):
    """weights of all layers that are matrices: one for queries, keys and values, one for the
    output, and two or three for the MLP"""
    return (4 + gated_mlp) * layers


@formula(r"n_\text{eq}", "count", source=_LI, least=1)
def equal_buckets(layer_matrices, layers_gradient_bytes, bucket_bytes):
    """number of buckets of the layers, each of the requested size or of one larger matrix. Exact
    where a whole number of layers fills a bucket, otherwise an upper bound"""
    return maximum(1, minimum(layer_matrices, floor_div(layers_gradient_bytes, bucket_bytes)))


@formula(r"S_\text{eq}", "bytes, any number")
def equal_bucket_bytes(layers_gradient_bytes, equal_buckets):
    """bytes of one equal bucket: the gradients of the layers in equal parts"""
    return layers_gradient_bytes / equal_buckets


@formula(r"S_\text{last}", "bytes")
def last_bytes(gradient_bytes, layers_gradient_bytes, head_bucket_bytes):
    """bytes of the gradients that are ready only when backward ends: tables, and the norms beside
    them"""
    return gradient_bytes - (layers_gradient_bytes + head_bucket_bytes)


@formula(r"n_\text{last}", "count")
def last_messages(table_gradient_bytes, bucket_bytes, learned_positions):
    """messages of the gradients that are ready only when backward ends: if the token table fills a
    bucket, the position table takes one more"""
    return where(table_gradient_bytes < bucket_bytes, 1, 1 + learned_positions)


@formula(r"n_\text{bkt}", "count")
def gradient_buckets(equal_buckets, last_messages, tied_head):
    """all-reduces of a step"""
    return equal_buckets + last_messages + (1 - tied_head)


@formula(r"\rho_\text{last}", "fraction")
def last_share(last_bytes, gradient_bytes):
    """share of the gradients that no backward hides"""
    return last_bytes / gradient_bytes


# --- when they are ready, and how long they travel ------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_EVENTS)


@formula(r"\tau_\text{rfwd}", "seconds", source="definition")
def rank_forward_seconds(strong_scaling, forward_seconds, data_parallel):
    """time of a rank's forward: the forward of one GPU, or a part of that time where the ranks
    share the batch"""
    return where(strong_scaling > 0, forward_seconds / data_parallel, forward_seconds)


@formula(r"\tau_\text{rbwd}", "seconds", source="definition")
def rank_backward_seconds(strong_scaling, backward_seconds, data_parallel):
    """time of a rank's backward: the backward of one GPU, or a part of that time where the ranks
    share the batch"""
    return where(strong_scaling > 0, backward_seconds / data_parallel, backward_seconds)


@formula(
    r"\eta_\text{head}",
    "fraction",
    source="operations of matrix products and attention: 2 for each weight and token, and 4 for"
    " each layer, column and token in the sequence",
    measured_by="tests/data_parallelism/test_data_parallel_time.py::test_the_share_of_the_head",
)
def head_backward_share(vocabulary, hidden, matrix_parameters, layers, sequence):
    """share of backward that the head takes, counted in operations: no layer has a gradient before
    the head is done"""
    return vocabulary * hidden / (matrix_parameters + 2 * layers * hidden * sequence)


@formula(r"\tau_\text{head}", "seconds")
def head_backward_seconds(head_backward_share, rank_backward_seconds):
    """time of the head's backward"""
    return head_backward_share * rank_backward_seconds


@formula(r"\tau_\text{gap}", "seconds")
def bucket_backward_seconds(rank_backward_seconds, head_backward_seconds, equal_buckets):
    """time of backward from one equal bucket to the next"""
    return (rank_backward_seconds - head_backward_seconds) / equal_buckets


@formula(r"\tau_\text{ready}", "seconds")
def first_ready_seconds(head_backward_seconds, bucket_backward_seconds):
    """time from the beginning of backward until the first equal bucket is ready; the last one is
    ready when backward ends"""
    return head_backward_seconds + bucket_backward_seconds


@formula(r"\tau_\text{first}", "seconds")
def head_bucket_seconds(
    data_parallel, tied_head, latency_seconds, head_bucket_bytes, link_bytes_per_second
):
    """time of the all-reduce of a head with a weight of its own"""
    return 2 * ring_pass(
        data_parallel, (1 - tied_head) * latency_seconds, head_bucket_bytes / link_bytes_per_second
    )


@formula(r"\tau_\text{eq}", "seconds")
def equal_bucket_seconds(data_parallel, latency_seconds, equal_bucket_bytes, link_bytes_per_second):
    """time of the all-reduce of one equal bucket"""
    return 2 * ring_pass(data_parallel, latency_seconds, equal_bucket_bytes / link_bytes_per_second)


@formula(r"B_\text{hide}", "bytes/s")
def hiding_link_bytes_per_second(data_parallel, equal_bucket_bytes, bucket_backward_seconds):
    """bandwidth at which an equal bucket travels as long as backward needs for the next one,
    latency left out: on a slower link buckets wait for each other"""
    return 2 * (data_parallel - 1) / data_parallel * (equal_bucket_bytes / bucket_backward_seconds)


@formula(r"\tau_\text{last}", "seconds")
def last_buckets_seconds(
    data_parallel, last_messages, latency_seconds, last_bytes, link_bytes_per_second
):
    """time of the all-reduces of the buckets that are ready only when backward ends"""
    return 2 * ring_pass(
        data_parallel, last_messages * latency_seconds, last_bytes / link_bytes_per_second
    )


@formula(r"\tau_\text{all}", "seconds")
def all_buckets_seconds(
    head_bucket_seconds, equal_buckets, equal_bucket_seconds, last_buckets_seconds
):
    """time of all buckets, one after another: a step waits this long if no bucket leaves during
    backward"""
    return head_bucket_seconds + equal_buckets * equal_bucket_seconds + last_buckets_seconds


@formula(r"\tau_\text{end}", "seconds")
def reduced_at_seconds(
    rank_backward_seconds,
    first_ready_seconds,
    head_backward_seconds,
    head_bucket_seconds,
    equal_buckets,
    equal_bucket_seconds,
    last_buckets_seconds,
):
    """time from the beginning of backward until the last bucket has arrived. One bucket
    finds the link free, and all later buckets follow without a gap: that bucket is the last equal
    bucket, the first, or the head's"""
    return last_buckets_seconds + maximum(
        rank_backward_seconds + equal_bucket_seconds,
        first_ready_seconds + equal_buckets * equal_bucket_seconds,
        head_backward_seconds + head_bucket_seconds + equal_buckets * equal_bucket_seconds,
    )


@formula(r"\tau_\text{exp}", "seconds")
def exposed_seconds(reduced_at_seconds, rank_backward_seconds):
    """time that a step still waits when buckets leave during backward: for the bytes in transit
    or not yet sent when backward ends"""
    return reduced_at_seconds - rank_backward_seconds


@formula(r"\tau_\text{hid}", "seconds", source="definition", measured_by=_STEP)
def hidden_seconds(all_buckets_seconds, exposed_seconds):
    """time of communication that passes while backward computes"""
    return all_buckets_seconds - exposed_seconds


@formula(
    r"\tau_\varphi",
    "seconds",
    source="arXiv 2507.03114, abstract, for the share",
    measured_by="tests/data_parallelism/test_published_overlap.py::test_a_hidden_second_costs",
)
def contention_seconds(contention, hidden_seconds):
    """time that computing loses to concurrent messages, which use the same memory and some of the
    same cores; the other times leave this loss out"""
    return contention * hidden_seconds


# --- the step -------------------------------------------------------------------------------------
formula = BOOK.section(source="definition", measured_by=_STEP)


@formula(r"\tau_\text{comp}", "seconds")
def compute_seconds(rank_forward_seconds, rank_backward_seconds, update_seconds):
    """time that a rank computes in a step; the update does not shrink with the batch"""
    return rank_forward_seconds + rank_backward_seconds + update_seconds


@formula(r"\tau_\text{step}", "seconds")
def data_parallel_step_seconds(compute_seconds, exposed_seconds):
    """time of a step on all ranks"""
    return compute_seconds + exposed_seconds


@formula(r"\eta_N", "fraction")
def scaling_efficiency(compute_seconds, data_parallel_step_seconds):
    """share of a step in which ranks compute"""
    return compute_seconds / data_parallel_step_seconds


@formula(r"\tau_\text{seq}", "seconds")
def step_without_overlap_seconds(compute_seconds, all_buckets_seconds):
    """time of a step in which no bucket leaves before backward has ended"""
    return compute_seconds + all_buckets_seconds


@formula(r"\eta_\text{seq}", "fraction")
def efficiency_without_overlap(compute_seconds, step_without_overlap_seconds):
    """share of a step without overlap in which ranks compute"""
    return compute_seconds / step_without_overlap_seconds
