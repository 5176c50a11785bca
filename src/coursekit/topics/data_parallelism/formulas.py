"""Data parallelism: messages and bytes of a step, and how much of their time backward hides.
Messages and bytes are exact. Times are those of events (timeline.py): a bucket leaves when its
gradients are there and the bucket before it is done, around one ring.

What is counted is shardlab/data_parallel and ladder.py. Where not all parameters are trained, give
`parameter_tensors` and `gradient_bytes` of those that are. The buckets of layers count as equal;
for another list give `equal_buckets`, `equal_bucket_bytes`, `last_bytes` and `last_messages`.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, floor_div, maximum, minimum, ring_pass, where

BOOK.given_beside(__file__)

_OURS = "shardlab.data_parallel"
_LI = "Li et al. 2020, section 3.2"
_RING = "Patarasuk and Yuan 2009"
_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_each_kind_sends"
_RING_SENT = "tests/data_parallelism/test_data_parallel.py::test_what_a_ring_sends"
_BUCKETS = "tests/data_parallelism/test_data_parallel_formulas.py::test_number_of_buckets"
_LIST = "tests/data_parallelism/test_data_parallel_time.py::test_the_list_of_a_model"
_EVENTS = "tests/data_parallelism/test_data_parallel_time.py::test_closed_form_is_the_simulation"
_SECONDS = "tests/data_parallelism/test_data_parallel_formulas.py::test_seconds"
_STEP = _EVENTS


class WhatIsSent(BOOK.section(source=_OURS, measured_by=_SENT)):
    def used_flag_bytes(q):
        r"""S_\text{used} | bytes | bytes of the flags that say which parameters a rank has used:
        one element for each tensor"""
        return q.gradient_element_bytes * q.parameter_tensors

    def reduced_bytes(q):
        r"""S_\text{step} | bytes | bytes that a rank brings to the all-reduces of a step, however
        they are cut into messages"""
        return q.gradient_bytes + q.used_flag_bytes

    def reduced_bytes_without_no_sync(q):
        r"""S_\text{every} | bytes | bytes of a step in which every microbatch sends its gradients,
        instead of only the last"""
        return q.accumulation_steps * q.reduced_bytes

    def server_messages(q):
        r"""n_\text{srv} | count | messages that a rank sends in a step with a parameter server:
        rank 0 sends its parameters to each other rank, and each other rank sends its gradients"""
        return where(q.rank < 1, (q.data_parallel - 1) * q.parameter_tensors, q.parameter_tensors)

    def server_sent_bytes(q):
        r"""Q_\text{srv} | bytes | bytes that a rank sends in a step with a parameter server"""
        return where(q.rank < 1, (q.data_parallel - 1) * q.parameter_bytes, q.reduced_bytes)

    def server_received_bytes(q):
        r"""Q_\text{in} | bytes | bytes that a rank receives in a step with a parameter server: at
        rank 0 they grow with the ranks"""
        return where(q.rank < 1, (q.data_parallel - 1) * q.reduced_bytes, q.parameter_bytes)

    @BOOK.own(source=_LI, measured_by=_BUCKETS, least=1)
    def gradient_buckets_at_most(q):
        r"""n_\text{most} | count | most all-reduces of a step: a bucket is closed once it holds its
        bytes, and it holds at least one tensor. Exact where tensors are small compared with a
        bucket"""
        return minimum(q.parameter_tensors, ceil_div(q.gradient_bytes, q.bucket_bytes))

    @BOOK.own(source=_RING, measured_by=_RING_SENT)
    def data_parallel_sent_bytes(q):
        r"""Q_\text{step} | bytes | bytes that a rank sends in a step around a ring: for many ranks
        about twice the gradients, however many there are"""
        return ceil_div(2 * (q.data_parallel - 1) * q.reduced_bytes, q.data_parallel)


class HowLongItTakesAfterBackward(BOOK.section(source=_OURS, measured_by=_SECONDS)):
    def server_seconds(q):
        r"""\tau_\text{srv} | seconds | time in which the server receives all gradients and sends
        all parameters, one rank after another"""
        return 2 * (q.data_parallel - 1) * q.parameter_tensors * q.latency_seconds + (
            q.data_parallel - 1
        ) * ((q.parameter_bytes + q.reduced_bytes) / q.link_bytes_per_second)

    def per_tensor_seconds(q):
        r"""\tau_\text{each} | seconds | time of one all-reduce for each parameter tensor: every
        tensor pays the latency of a ring"""
        return 2 * ring_pass(
            q.data_parallel,
            q.parameter_tensors * q.latency_seconds,
            q.reduced_bytes / q.link_bytes_per_second,
        )


# --- the buckets: a head of its own, equal buckets of layers, and what comes last -----------------
class TheBuckets(BOOK.section(source=_OURS, measured_by=_LIST)):
    def layers_gradient_bytes(q):
        r"""S_\text{layers} | bytes | bytes of the gradients of all layers"""
        return q.gradient_element_bytes * q.stack_parameters

    def table_gradient_bytes(q):
        r"""S_\text{table} | bytes | bytes of the gradient of the token table, which backward
        reaches last of all. A tied head adds to this gradient early but cannot send it"""
        return q.gradient_element_bytes * q.vocabulary * q.hidden

    def head_bucket_bytes(q):
        r"""S_\text{first} | bytes | bytes of the gradient of a head with a weight of its own, which
        leaves first; 0 where the head is tied"""
        return q.gradient_element_bytes * q.head_parameters

    def layer_matrices(q):
        r"""n_\text{mat} | count | weights of all layers that are matrices: one for queries, keys
        and values, one for the output, and two or three for the MLP"""
        return (4 + q.gated_mlp) * q.layers

    @BOOK.own(source=_LI, least=1)
    def equal_buckets(q):
        r"""n_\text{eq} | count | number of buckets of the layers, each of the requested size or of
        one larger matrix. Exact where a whole number of layers fills a bucket, otherwise an upper
        bound"""
        return maximum(
            1, minimum(q.layer_matrices, floor_div(q.layers_gradient_bytes, q.bucket_bytes))
        )

    def equal_bucket_bytes(q):
        r"""S_\text{eq} | bytes, any number | bytes of one equal bucket: the gradients of the layers
        in equal parts"""
        return q.layers_gradient_bytes / q.equal_buckets

    def last_bytes(q):
        r"""S_\text{last} | bytes | bytes of the gradients that are ready only when backward ends:
        tables, and the norms beside them"""
        return q.gradient_bytes - (q.layers_gradient_bytes + q.head_bucket_bytes)

    def last_messages(q):
        r"""n_\text{last} | count | messages of the gradients that are ready only when backward
        ends: if the token table fills a bucket, the position table takes one more"""
        return where(q.table_gradient_bytes < q.bucket_bytes, 1, 1 + q.learned_positions)

    def gradient_buckets(q):
        r"""n_\text{bkt} | count | all-reduces of a step"""
        return q.equal_buckets + q.last_messages + (1 - q.tied_head)

    def last_share(q):
        r"""\rho_\text{last} | fraction | share of the gradients that no backward hides"""
        return q.last_bytes / q.gradient_bytes


# --- when they are ready, and how long they travel ------------------------------------------------
class WhenTheyAreReady(BOOK.section(source=_OURS, measured_by=_EVENTS)):
    @BOOK.own(source="definition")
    def rank_forward_seconds(q):
        r"""\tau_\text{rfwd} | seconds | time of a rank's forward: the forward of one GPU, or a part
        of that time where the ranks share the batch"""
        return where(q.strong_scaling > 0, q.forward_seconds / q.data_parallel, q.forward_seconds)

    @BOOK.own(source="definition")
    def rank_backward_seconds(q):
        r"""\tau_\text{rbwd} | seconds | time of a rank's backward: the backward of one GPU, or a
        part of that time where the ranks share the batch"""
        return where(q.strong_scaling > 0, q.backward_seconds / q.data_parallel, q.backward_seconds)

    @BOOK.own(
        source="operations of matrix products and attention: 2 for each weight and token, and 4 for"
        " each layer, column and token in the sequence",
        measured_by="tests/data_parallelism/test_data_parallel_time.py::test_the_share_of_the_head",
    )
    def head_backward_share(q):
        r"""\eta_\text{head} | fraction | share of backward that the head takes, counted in
        operations: no layer has a gradient before the head is done"""
        return (
            q.vocabulary * q.hidden / (q.matrix_parameters + 2 * q.layers * q.hidden * q.sequence)
        )

    def head_backward_seconds(q):
        r"""\tau_\text{head} | seconds | time of the head's backward"""
        return q.head_backward_share * q.rank_backward_seconds

    def bucket_backward_seconds(q):
        r"""\tau_\text{gap} | seconds | time of backward from one equal bucket to the next"""
        return (q.rank_backward_seconds - q.head_backward_seconds) / q.equal_buckets

    def first_ready_seconds(q):
        r"""\tau_\text{ready} | seconds | time from the beginning of backward until the first equal
        bucket is ready; the last one is ready when backward ends"""
        return q.head_backward_seconds + q.bucket_backward_seconds

    def head_bucket_seconds(q):
        r"""\tau_\text{first} | seconds | time of the all-reduce of a head with a weight of its
        own"""
        return 2 * ring_pass(
            q.data_parallel,
            (1 - q.tied_head) * q.latency_seconds,
            q.head_bucket_bytes / q.link_bytes_per_second,
        )

    def equal_bucket_seconds(q):
        r"""\tau_\text{eq} | seconds | time of the all-reduce of one equal bucket"""
        return 2 * ring_pass(
            q.data_parallel, q.latency_seconds, q.equal_bucket_bytes / q.link_bytes_per_second
        )

    def hiding_link_bytes_per_second(q):
        r"""B_\text{hide} | bytes/s | bandwidth at which an equal bucket travels as long as backward
        needs for the next one, latency left out: on a slower link buckets wait for each other"""
        return (
            2
            * (q.data_parallel - 1)
            / q.data_parallel
            * (q.equal_bucket_bytes / q.bucket_backward_seconds)
        )

    def last_buckets_seconds(q):
        r"""\tau_\text{last} | seconds | time of the all-reduces of the buckets that are ready only
        when backward ends"""
        return 2 * ring_pass(
            q.data_parallel,
            q.last_messages * q.latency_seconds,
            q.last_bytes / q.link_bytes_per_second,
        )

    def all_buckets_seconds(q):
        r"""\tau_\text{all} | seconds | time of all buckets, one after another: a step waits this
        long if no bucket leaves during backward"""
        return (
            q.head_bucket_seconds
            + q.equal_buckets * q.equal_bucket_seconds
            + q.last_buckets_seconds
        )

    def reduced_at_seconds(q):
        r"""\tau_\text{end} | seconds | time from the beginning of backward until the last bucket
        has arrived. One bucket finds the link free, and all later buckets follow without a gap:
        that bucket is the last equal bucket, the first, or the head's"""
        return q.last_buckets_seconds + maximum(
            q.rank_backward_seconds + q.equal_bucket_seconds,
            q.first_ready_seconds + q.equal_buckets * q.equal_bucket_seconds,
            q.head_backward_seconds
            + q.head_bucket_seconds
            + q.equal_buckets * q.equal_bucket_seconds,
        )

    def exposed_seconds(q):
        r"""\tau_\text{exp} | seconds | time that a step still waits when buckets leave during
        backward: for the bytes in transit or not yet sent when backward ends"""
        return q.reduced_at_seconds - q.rank_backward_seconds

    @BOOK.own(source="definition", measured_by=_STEP)
    def hidden_seconds(q):
        r"""\tau_\text{hid} | seconds | time of communication that passes while backward computes"""
        return q.all_buckets_seconds - q.exposed_seconds

    @BOOK.own(
        source="arXiv 2507.03114, abstract, for the share",
        measured_by="tests/data_parallelism/test_data_parallel_time.py::test_a_hidden_second_costs",
    )
    def contention_seconds(q):
        r"""\tau_\varphi | seconds | time that computing loses to concurrent messages, which use the
        same memory and some of the same cores; the other times leave this loss out"""
        return q.contention * q.hidden_seconds


class TheStep(BOOK.section(source="definition", measured_by=_STEP)):
    def compute_seconds(q):
        r"""\tau_\text{comp} | seconds | time that a rank computes in a step; the update does not
        shrink with the batch"""
        return q.rank_forward_seconds + q.rank_backward_seconds + q.update_seconds

    def data_parallel_step_seconds(q):
        r"""\tau_\text{step} | seconds | time of a step on all ranks"""
        return q.compute_seconds + q.exposed_seconds

    def scaling_efficiency(q):
        r"""\eta_N | fraction | share of a step in which ranks compute"""
        return q.compute_seconds / q.data_parallel_step_seconds

    def step_without_overlap_seconds(q):
        r"""\tau_\text{seq} | seconds | time of a step in which no bucket leaves before backward has
        ended"""
        return q.compute_seconds + q.all_buckets_seconds

    def efficiency_without_overlap(q):
        r"""\eta_\text{seq} | fraction | share of a step without overlap in which ranks compute"""
        return q.compute_seconds / q.step_without_overlap_seconds
