"""Data parallelism: messages and bytes of a step, and how much of their time backward hides.
Messages and bytes are exact. Times are those of a model: buckets of one size become ready evenly
over backward and are reduced around a ring, one after another.

What is counted is shardlab/data_parallel.py. Where not all parameters are trained, give
`parameter_tensors` and `gradient_bytes` of those that are; where tensors are large beside a bucket,
give `gradient_buckets`: it is `len(model.buckets)`.
"""

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import ceil_div, maximum, minimum, ring_pass, where

# --- what the reader gives

BOOK.given(
    r"""
bucket_bytes | S_\text{bkt} | bytes | bytes of gradients at which a bucket is closed and may leave
"""
)

_OURS = "shardlab.data_parallel"
_LI = "Li et al. 2020, section 3.2"
_RING = "Patarasu and Yuan 2009"
_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_each_kind_sends"
_RING_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_a_ring_sends"
_BUCKETS = "tests/data_parallelism/test_data_parallel_formulas.py::test_number_of_buckets"
_SECONDS = "tests/data_parallelism/test_data_parallel_formulas.py::test_seconds"
_STEP = "tests/data_parallelism/test_data_parallel_formulas.py::test_step"


# --- what is sent ---------------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_SENT)


@formula(r"S_\text{used}", "bytes")
def used_flag_bytes(parameter_tensors, gradient_element_bytes):
    """bytes of the numbers that say which parameters a rank has used: one element for each
    tensor"""
    return gradient_element_bytes * parameter_tensors


@formula(r"S_\text{step}", "bytes")
def reduced_bytes(gradient_bytes, used_flag_bytes):
    """bytes that a rank brings to the all-reduces of a step, however they are cut into messages"""
    return gradient_bytes + used_flag_bytes


@formula(r"S_\text{every}", "bytes")
def reduced_bytes_without_no_sync(reduced_bytes, accumulation_steps):
    """bytes of a step in which every microbatch sends, and not only the last"""
    return accumulation_steps * reduced_bytes


@formula(r"n_\text{srv}", "count")
def server_messages(ranks, rank, parameter_tensors):
    """messages that a rank sends in a step with a parameter server: rank 0 its parameters to each
    other, the others their gradients"""
    return where(rank < 1, (ranks - 1) * parameter_tensors, parameter_tensors)


@formula(r"Q_\text{srv}", "bytes")
def server_sent_bytes(ranks, rank, parameter_bytes, reduced_bytes):
    """bytes that a rank sends in a step with a parameter server"""
    return where(rank < 1, (ranks - 1) * parameter_bytes, reduced_bytes)


@formula(r"Q_\text{in}", "bytes")
def server_received_bytes(ranks, rank, parameter_bytes, reduced_bytes):
    """bytes that a rank receives in a step with a parameter server: at rank 0 they grow with the
    ranks"""
    return where(rank < 1, (ranks - 1) * reduced_bytes, parameter_bytes)


@formula(r"n_\text{bkt}", "count", source=_LI, measured_by=_BUCKETS, least=1)
def gradient_buckets(parameter_tensors, gradient_bytes, bucket_bytes):
    """all-reduces of a step: a bucket is closed once it holds its bytes, and holds a whole tensor
    at least. Never more than this; exactly this where tensors are small beside a bucket"""
    return minimum(parameter_tensors, ceil_div(gradient_bytes, bucket_bytes))


@formula(r"Q_\text{step}", "bytes", source=_RING, measured_by=_RING_SENT)
def data_parallel_sent_bytes(ranks, reduced_bytes):
    """bytes that a rank sends in a step around a ring: for many ranks twice the gradients, however
    many ranks there are"""
    return ceil_div(2 * (ranks - 1) * reduced_bytes, ranks)


# --- how long it takes after backward -------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_SECONDS)


@formula(r"\tau_\text{srv}", "seconds")
def server_seconds(
    ranks, parameter_tensors, latency_seconds, parameter_bytes, reduced_bytes, link_bytes_per_second
):
    """time in which the server gets all gradients and gives all parameters away, one rank after
    another"""
    return 2 * (ranks - 1) * parameter_tensors * latency_seconds + (ranks - 1) * (
        (parameter_bytes + reduced_bytes) / link_bytes_per_second
    )


@formula(r"\tau_\text{each}", "seconds")
def per_tensor_seconds(
    ranks, parameter_tensors, latency_seconds, reduced_bytes, link_bytes_per_second
):
    """time of an all-reduce for each parameter tensor: the latency of a ring is paid for every one
    of them"""
    return 2 * ring_pass(
        ranks, parameter_tensors * latency_seconds, reduced_bytes / link_bytes_per_second
    )


@formula(r"\tau_\text{bkt}", "seconds")
def bucket_seconds(ranks, latency_seconds, reduced_bytes, gradient_buckets, link_bytes_per_second):
    """time of the all-reduce of one bucket"""
    return 2 * ring_pass(
        ranks, latency_seconds, reduced_bytes / (gradient_buckets * link_bytes_per_second)
    )


@formula(r"\tau_\text{all}", "seconds")
def all_buckets_seconds(gradient_buckets, bucket_seconds):
    """time of all buckets, one after another: what a step waits for if none of them leaves during
    backward"""
    return gradient_buckets * bucket_seconds


@formula(r"\tau_\text{exp}", "seconds")
def exposed_seconds(bucket_seconds, all_buckets_seconds, gradient_buckets, backward_seconds):
    """time that a step still waits when buckets leave during backward: the last is ready when
    backward ends; and the first, before which nothing can leave, when a first part of backward is
    done"""
    return maximum(
        bucket_seconds,
        all_buckets_seconds - (gradient_buckets - 1) / gradient_buckets * backward_seconds,
    )


@formula(r"\tau_\text{hid}", "seconds", source="definition", measured_by=_STEP)
def hidden_seconds(all_buckets_seconds, exposed_seconds):
    """time of communication that passes while backward computes"""
    return all_buckets_seconds - exposed_seconds


# --- the step -------------------------------------------------------------------------------------
formula = BOOK.section(source="definition", measured_by=_STEP)


@formula(r"\tau_\text{comp}", "seconds")
def compute_seconds(forward_seconds, backward_seconds, update_seconds):
    """time of a step on one rank alone"""
    return forward_seconds + backward_seconds + update_seconds


@formula(r"\tau_\text{step}", "seconds")
def data_parallel_step_seconds(compute_seconds, exposed_seconds):
    """time of a step on all ranks, each with a microbatch of its own"""
    return compute_seconds + exposed_seconds


@formula(r"\eta_N", "fraction")
def scaling_efficiency(compute_seconds, data_parallel_step_seconds):
    """share of a step in which ranks compute: N ranks do the work of this times N"""
    return compute_seconds / data_parallel_step_seconds


@formula(r"\tau_\text{seq}", "seconds")
def step_without_overlap_seconds(compute_seconds, all_buckets_seconds):
    """time of a step in which no bucket leaves before backward has ended"""
    return compute_seconds + all_buckets_seconds


@formula(r"\eta_\text{seq}", "fraction")
def efficiency_without_overlap(compute_seconds, step_without_overlap_seconds):
    """share of such a step in which ranks compute"""
    return compute_seconds / step_without_overlap_seconds
