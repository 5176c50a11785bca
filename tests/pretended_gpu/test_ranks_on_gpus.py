"""Techniques on 1, 2 and 4 pretended GPUs (by day on one of these numbers), all in one file, so
that the ranks are started once: the plain model's values, one order of calls on all ranks, a budget
for the host's waits in a step. The cores and PyTorch's own are known to be right: where one fails,
the pretence is wrong. What a GPU and NCCL refuse is refused, too."""

from functools import partial
from itertools import product

import cases_device as device
import cases_offload as offload
import cases_one_gpu as one_gpu
import cases_ranks as cases
import pytest
import torch
from asking import no_gpus
from pretended import are_real, build

from coursekit.topics.activation_checkpointing.runs import ON_CPU, WAYS
from shardlab.mixed_precision.policies import POLICIES

pytestmark = pytest.mark.ranks


LADDER = ("core", "ParameterServer", "PerTensor", "Bucketed", "DistributedDataParallel")
VARIANTS = ("core", "plain", "ring", "fp32 sums", "clip", "ahead")
OVERLAPS = ("overlap", "sequence, overlap", "sequence, regather, overlap, clip")
CUTS = ("plain", "clip", "sequence", "sequence, regather, clip", "partitioned", *OVERLAPS)
SENDING_LESS = "everything top_k signs four_bits power_sgd OneBitAdam DeMo DiLoCo".split()
OF_THE_CORE = ("1F1B", "GPipe", "interleaved 1F1B", "eager 1F1B")
SCHEDULES = (*OF_THE_CORE, "zero-bubble H1", "zero-bubble H2")
SCALER = 3  # a loss scaler asks once whether all gradients are finite
# when all copies are under way: before the update, in stage 3 at the end of backward
OFFLOAD = 1
MOST_OF_SAVE_ON_CPU = 200  # PyTorch waits for each tensor that it saves
STAGES, SCALERS = (1, 2, 3), ("GradScaler", "LossScaler")
SCALED = [name for name, policy in POLICIES.items() if policy.needs_scale]
pretended_only = pytest.mark.skipif(are_real(), reason="nothing is pretended")


def on(counts, case, *axes, by_day=2, waits=0, one_in=1, marks=()):
    """Rows of a case: each choice of its arguments, of an axis each, on so many GPUs; by day
    those on one number of GPUs alone, each `one_in`-th."""
    found, day = [], 0
    for n in counts:
        for args in product(*axes):
            at_night = n != by_day or day % one_in
            day += n == by_day
            own = [*marks, *[pytest.mark.nightly] * bool(at_night)]
            name = " ".join(map(str, [case.__name__, *args, "on", n]))
            found.append(pytest.param(n, case, args, waits, id=name, marks=own))
    return found


on_all = partial(on, (1, 2, 4))
on_one = partial(on, (1,), by_day=1)  # on more each process would do the same
of_a_gpu = partial(on_one, marks=[pretended_only])
of_nccl = partial(on, (4,), by_day=4, marks=[pretended_only])

# What a case must catch stands above its rows.
ROWS = [
    # a bucket that is read before its all-reduce has ended (drop a wait()), calls in the order in
    # which gradients come on each rank, an .item() in a step; in the core, flags that are read on
    # the host where every parameter was used
    *on_all(cases.data_parallel_as, LADDER, one_in=2),
    # a shard that is gathered from memory that nobody wrote (drop the update), sums without the
    # division by the ranks, a norm that is read on the host; in the core, a shard that is a copy, a
    # full tensor that is not gathered again before backward
    *on_all(cases.zero_as, STAGES, VARIANTS, one_in=5),
    # a sum of fp16 that overflows before it is divided (ReduceOp.SUM for AVG, then mul_); one of
    # bf16 that is not divided, or one whose gradients are
    *on((1, 2, 3, 4), cases.mean_in_16_bits),
    # shards that are kept in bf16, which rounds by up to 4e-3, as gradients of bf16 move these by
    # less than 1e-3; a forward that does not compute in bf16
    *on_all(cases.zero_as, (3,), ("bf16",)),
    # gradients on the host that are unscaled by a number on the GPU, a wait for each gradient
    *on_all(cases.zero_as, STAGES, ("plain",), SCALERS, waits=SCALER, one_in=6),
    *on_all(cases.zero_as, STAGES, ("offload",), SCALERS, waits=SCALER + OFFLOAD, one_in=3),
    # an update on the host that reads gradients before they have come
    *on_all(
        cases.zero_as,
        STAGES,
        ("offload", "offload, clip", "offload, ahead"),
        waits=OFFLOAD,
        one_in=4,
    ),
    # gradients of a backward that raised, which arrive in the next one, or keep its own from coming
    *on((2,), cases.zero_as, (2, 3), ("ahead, broken",)),
    *on((2,), cases.zero_as, (3,), ("offload, broken",), waits=OFFLOAD),
    # states that come back on the CPU, momentum that does not come back
    *on_all(cases.saved_and_resumed, (0, 1, 3)),
    # a bias that every rank adds, an all-gather into a tensor that is not contiguous, a loss that
    # asks on the host whether a target is in its part of the vocabulary; with overlap a message
    # that nobody waits for (drop a wait())
    *on_all(cases.tensor_parallel_as, CUTS, one_in=3),
    # a bias that every rank adds, a question on the host whether a token is known; gradients of
    # norms that are not added up, all tokens kept under the address of another tensor
    *on_all(cases.core_tensor_parallel, (0, 1), (False, True), one_in=3),
    # groups of a mesh that ranks make in different orders
    *on((2, 4), cases.mesh_of_data_and_tensor_parallelism, by_day=4),
    # keys that are read before they have come (drop the wait in Passing), a mask that is made on
    # the host, memory of a message that is given out while it travels
    *on_all(
        cases.context_parallel_as,
        ("RingAttention", "Ulysses", "GatheredAttention"),
        (False, True),
        one_in=3,
    ),
    # codes or waves that are made on the host, a message that is read before it has come (drop the
    # wait in wait_all), buckets whose second messages cross
    *on_all(cases.sending_less, SENDING_LESS, one_in=3),
    # a scale that is read on the host; a gradient that is not contiguous
    *on_all(cases.zero_plus_plus, (True, False)),
    # counts that are read twice; rows that are read before they have come; a host that waits for
    # counts which it knows. Each of two layers asks how many rows come, and loops over experts for
    # two products, which ask how many rows each has. Rows of a capacity, as many for each expert,
    # ask nothing.
    *on_all(cases.expert_parallel_as, (None,), (True,), waits=2 * 3),
    *on_all(cases.expert_parallel_as, (4.0,), (False,)),
    # a plan whose messages of a pair are told apart by their tags, a wait for the work of one
    # message in a batch
    *on_all(cases.collectives_of, ("plain", "fast")),
    # a leader that sends in the group of its node before the node's sum is there
    *on((2, 4), cases.hierarchical, by_day=4),
    # no first message of each pair when a pipeline is made (drop Wire.connect()), with a tied
    # weight or with messages posted ahead (`self.ahead = True`); in the core, one group for both
    # directions, tied gradients that count an earlier sum twice
    *on_all(cases.pipelined, SCHEDULES, (1, 0), (False,), by_day=4, one_in=8),
    *on_all(cases.pipelined, OF_THE_CORE, (1, 0), (True,), by_day=4, one_in=8),
    # new groups for each pipeline: each keeps communicators and threads for good
    *of_nccl(cases.pipelines_again, ("hardened", "core"), one_in=2),
    # record_stream; activations that are held until backward; a host that waits
    *on_one(offload.activations_are_let_go),
    # a question on the host for each gradient, a flag on the CPU; one wait: are all finite?
    *on_all(cases.core_masters_and_a_scale, waits=1),
    # a second run under other kernels than the first, a value that is read on the host to compare
    # both runs
    *on_one(one_gpu.recomputed, [name for name in WAYS if name != ON_CPU], one_in=3),
    # pinned memory that is not seen as pinned
    *on_one(one_gpu.recomputed, (ON_CPU,), waits=MOST_OF_SAVE_ON_CPU),
    # a copy that blocks, or goes to memory that is not pinned
    *on_one(one_gpu.activations_on_the_host),
    # a second run that restores the CPU's random state alone
    *on_one(one_gpu.recomputed_with_dropout, one_gpu.DROPPING, one_in=2),
    # a number of known targets that the host reads; words of a tile that are counted on the CPU
    *on_one(one_gpu.without_logits, one_gpu.LOSSES),
    # gradients that are not unscaled, a scaler that asks the host about each gradient, autocast of
    # another device
    *on_one(one_gpu.policy_of, SCALED, ("shardlab",), waits=SCALER),
    *on_one(one_gpu.policy_of, [name for name in POLICIES if name not in SCALED], ("shardlab",)),
    *on_one(one_gpu.policy_of, ("AUTOCAST_FP16",), ("torch.amp",), waits=SCALER),
    *on_one(one_gpu.policy_of, ("AUTOCAST_BF16",), ("torch.amp",)),
    # a scale of a block that is made on the CPU; factors that nothing rounds
    *on_one(one_gpu.float8),
    # random bits that come from the CPU
    *on_one(one_gpu.stochastic_rounding),
    # memory that is not pinned, or a slice of it, so that the host copies; a batch that is handed
    # over before its copy has ended (drop wait_event), or whose memory is given away while it is
    # read (drop record_stream); a thread that takes GPU 0 for every rank's
    *on((1, 2), one_gpu.prefetched_batches),
    # a counter of the allocator that is read at another moment than the ledger's
    *on_one(one_gpu.ledger_and_account),
    # a view that becomes a copy in device.cpp, a result in place that gets lost
    *on_one(one_gpu.double_precision_is_close),
    # check_devices() or note_waits() left out of an operator's call in device.cpp, memory that
    # comes as zeros, results that are not counted, a guard that is not registered (then backward
    # runs in the caller's thread), numbers drawn from the CPU's generator
    *of_a_gpu(device.two_devices_are_refused),
    *of_a_gpu(device.waits_are_counted),
    *of_a_gpu(device.hidden_waits_are_the_devices_own),
    *of_a_gpu(device.memory_is_counted_and_holds_garbage),
    *of_a_gpu(device.backward_runs_in_another_thread),
    *of_a_gpu(device.random_numbers_are_the_devices_own),
    # check_tensor() left out, an average without its division, a send that goes by its tag, a batch
    # with a work for each message, a work that keeps the tensors of its future for good, a second
    # future without them
    *of_nccl(device.a_collective_wants_contiguous_tensors_of_the_gpu),
    *of_nccl(device.collectives_give_sums_and_averages),
    *of_nccl(device.tags_are_ignored),
    *of_nccl(device.a_message_in_a_batch_has_no_work),
    *of_nccl(device.a_future_gives_tensors_and_keeps_none),
]


@pytest.mark.parametrize("gpus, case, args, waits", ROWS)
def test_a_case(on_gpus, gpus, case, args, waits):
    """Must catch: what is said above the row."""
    on_gpus(gpus, case, *args).is_right(waits)


# --- the pretended GPUs themselves ----------------------------------------------------------------


@pretended_only
def test_the_first_message_of_a_pair_waits_for_the_peer(on_gpus):
    """Must catch: a communicator that is there without its ranks having met; gloo would deliver."""
    error = on_gpus(4, device.each_rank_of_a_circle_receives_first).error
    assert "Hangs: NCCL would hang" in error or error.startswith("RanksDeadlocked"), error


@pretended_only
def test_ranks_that_disagree_are_told(on_gpus):
    """Must catch: `disagreements` that compares only how many calls there were."""
    (line,) = on_gpus(2, device.ranks_disagree).order
    assert "call 0 of rank 0 is ('broadcast_'" in line and "of rank 1 ('allreduce_'" in line


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A device that is to be compiled, as if it were written for this PyTorch."""
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "WRITTEN_FOR", (torch.__version__,))
    monkeypatch.setattr(torch.version, "cuda", None)


@pretended_only
def test_a_machine_without_a_compiler_says_what_to_install(monkeypatch, anew):
    """Must catch: a test that passes or fails obscurely where there is no compiler; a skip on a
    continuous integration machine."""
    monkeypatch.setattr(build, "COMPILERS", ())
    with pytest.raises(build.CannotBuild, match=r"apt-get install g\+\+") as raised:
        build.library()
    with pytest.raises(pytest.skip.Exception):
        no_gpus(raised.value, continuous_integration=False)
    with pytest.raises(pytest.fail.Exception, match="never skipped"):
        no_gpus(raised.value, continuous_integration=True)


@pretended_only
def test_another_pytorch_is_named(monkeypatch, tmp_path, anew):
    """Must catch: a failure of the job with the oldest PyTorch, into which nccl.py reaches
    differently; a device.cpp with an error that is excused, or leaves a library behind."""
    monkeypatch.setattr(build, "SOURCE", tmp_path / "device.cpp")
    build.SOURCE.write_text("#error wrong")
    with pytest.raises(build.CannotBuild, match="does not compile with torch") as raised:
        build.library()
    assert not raised.value.excused and not list(tmp_path.glob("*.so"))
    monkeypatch.setattr(build, "WRITTEN_FOR", ("1.0",))
    with pytest.raises(build.CannotBuild, match="written for torch 1.0, and this is") as raised:
        build.library()
    with pytest.raises(pytest.skip.Exception):
        no_gpus(raised.value, continuous_integration=True)
