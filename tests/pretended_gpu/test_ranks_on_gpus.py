"""Techniques on 1, 2 and 4 pretended GPUs (by day on one of these numbers), all in one file, so
that the ranks are started once: the plain model's values, one order of calls on all ranks, a budget
for the host's waits in a step. The cores and PyTorch's own are known to be right: where one fails,
the pretence is wrong. What a GPU and NCCL refuse is refused, too."""

import cases_device as device
import cases_offload as offload
import cases_one_gpu as one_gpu
import cases_ranks as cases
import pytest
from asking import no_gpus
from night import at_night
from pretended import are_real, build

from coursekit.topics.activation_checkpointing.runs import ON_CPU, WAYS
from shardlab.mixed_precision.policies import POLICIES

pytestmark = pytest.mark.ranks


def by_day(*counts):
    """1, 2 and 4 GPUs; each case runs by day on these alone."""
    return [case for n in (1, 2, 4) for case in ([n] if n in counts else at_night(n))]


COUNTS = by_day(2)
LADDER = ("core", "ParameterServer", "PerTensor", "Bucketed", "DistributedDataParallel")
VARIANTS = ("core", "plain", "ring", "fp32 sums", "clip", "ahead")
pretended_only = pytest.mark.skipif(are_real(), reason="nothing is pretended")
SCALER = 3  # a loss scaler asks once whether all gradients are finite
# when all copies are under way: before the update, in stage 3 at the end of backward
OFFLOAD = 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", LADDER)
@pytest.mark.parametrize("gpus", COUNTS)
def test_data_parallelism(on_gpus, gpus, kind):
    """Must catch: a bucket that is read before its all-reduce has ended (drop a wait()), calls in
    the order in which gradients come on each rank, an .item() in a step; in the core, flags that
    are read on the host where every parameter was used."""
    on_gpus(gpus, cases.data_parallel_as, kind).is_right()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero(on_gpus, gpus, stage, variant):
    """Must catch: a shard that is gathered from memory that nobody wrote (drop the update), sums
    without the division by the ranks, a norm that is read on the host; in the core, a shard that is
    a copy, a full tensor that is not gathered again before backward."""
    on_gpus(gpus, cases.zero_as, stage, variant).is_right()


@pytest.mark.parametrize("gpus", [*COUNTS, *at_night(3)])
def test_a_mean_in_16_bits(on_gpus, gpus):
    """Must catch: a sum of fp16 that overflows before it is divided (ReduceOp.SUM for AVG, then
    mul_); one of bf16 that is not divided, or one whose gradients are."""
    on_gpus(gpus, cases.mean_in_16_bits).is_right()


@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_3_in_bf16(on_gpus, gpus):
    """Must catch: shards that are kept in bf16, which rounds by up to 4e-3; gradients of bf16 move
    these by less than 1e-3. And a forward that does not compute in bf16."""
    on_gpus(gpus, cases.zero_as, 3, "bf16").is_right()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("scaler", ["GradScaler", "LossScaler"])
@pytest.mark.parametrize("variant", ["plain", "offload"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_with_a_loss_scaler(on_gpus, gpus, stage, variant, scaler):
    """Must catch: gradients on the host that are unscaled by a number on the GPU, a wait for each
    gradient."""
    waits = SCALER + (OFFLOAD if variant == "offload" else 0)
    on_gpus(gpus, cases.zero_as, stage, variant, scaler).is_right(waits)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("variant", ["offload", "offload, clip", "offload, ahead"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_offloaded(on_gpus, gpus, stage, variant):
    """Must catch: an update on the host that reads gradients before they have come."""
    on_gpus(gpus, cases.zero_as, stage, variant).is_right(OFFLOAD)


@pytest.mark.parametrize("stage, variant", [(2, "ahead"), (3, "ahead"), (3, "offload")])
def test_zero_after_a_backward_that_raised(on_gpus, stage, variant):
    """Must catch: gradients of the broken backward that arrive in the next one, or keep its own
    from arriving."""
    waits = OFFLOAD if variant == "offload" else 0
    on_gpus(2, cases.zero_as, stage, f"{variant}, broken").is_right(waits)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("gpus", COUNTS)
def test_saving(on_gpus, gpus, stage):
    """Must catch: states that come back on the CPU, momentum that does not come back."""
    on_gpus(gpus, cases.saved_and_resumed, stage).is_right()


OVERLAPS = ["overlap", "sequence, overlap", "sequence, regather, overlap, clip"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "variant", ["plain", "clip", "sequence", "sequence, regather, clip", "partitioned", *OVERLAPS]
)
@pytest.mark.parametrize("gpus", COUNTS)
def test_tensor_parallelism(on_gpus, gpus, variant):
    """Must catch: a bias that every rank adds, an all-gather into a tensor that is not contiguous,
    a loss that asks on the host whether a target is in its part of the vocabulary. With overlap a
    message that nobody waits for (drop a wait())."""
    on_gpus(gpus, cases.tensor_parallel_as, variant).is_right()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("tied", [0, 1])
@pytest.mark.parametrize("gpus", COUNTS)
def test_core_tensor_parallelism(on_gpus, gpus, tied, by_tokens):
    """Must catch: a bias that every rank adds, a question on the host whether a token is known;
    gradients of norms that are not added up, all tokens kept under the address of another
    tensor."""
    on_gpus(gpus, cases.core_tensor_parallel, tied, by_tokens).is_right()


@pytest.mark.parametrize("gpus", by_day(4)[1:])
def test_data_and_tensor_parallelism(on_gpus, gpus):
    """Must catch: groups of a mesh that ranks make in different orders."""
    on_gpus(gpus, cases.mesh_of_data_and_tensor_parallelism).is_right()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by_core", [False, True])
@pytest.mark.parametrize("mix", ["RingAttention", "Ulysses", "GatheredAttention"])
@pytest.mark.parametrize("gpus", COUNTS)
def test_context_parallelism(on_gpus, gpus, mix, by_core):
    """Must catch: keys that are read before they have come (drop the wait in Passing), a mask that
    is made on the host, memory of a message that is given out while it travels."""
    on_gpus(gpus, cases.context_parallel_as, mix, by_core).is_right()


SENDING_LESS = "everything top_k signs four_bits power_sgd OneBitAdam DeMo DiLoCo".split()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SENDING_LESS)
@pytest.mark.parametrize("gpus", COUNTS)
def test_sending_less(on_gpus, gpus, name):
    """Must catch: codes or waves that are made on the host, a message that is read before it has
    come (drop the wait in wait_all), buckets whose second messages cross."""
    on_gpus(gpus, cases.sending_less, name).is_right()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("gpus", COUNTS)
def test_zero_plus_plus(on_gpus, gpus, exact):
    """Must catch: a scale that is read on the host; a gradient that is not contiguous."""
    on_gpus(gpus, cases.zero_plus_plus, exact).is_right()


# Each of two layers asks how many rows come, and loops over experts for two products, which ask how
# many rows each has. Rows of a capacity, as many for each expert, ask nothing.
@pytest.mark.parametrize("capacity, overlap, waits", [(None, True, 2 * 3), (4.0, False, 0)])
@pytest.mark.parametrize("gpus", COUNTS)
def test_expert_parallelism(on_gpus, gpus, capacity, overlap, waits):
    """Must catch: counts that are read twice; rows that are read before they have come; a host that
    waits for counts which it knows."""
    on_gpus(gpus, cases.expert_parallel_as, capacity, overlap).is_right(waits)


@pytest.mark.parametrize("module", ["plain", "fast"])
@pytest.mark.parametrize("gpus", COUNTS)
def test_collectives(on_gpus, gpus, module):
    """Must catch: a plan whose messages of a pair are told apart by their tags, a wait for the work
    of one message in a batch."""
    on_gpus(gpus, cases.collectives_of, module).is_right()


@pytest.mark.parametrize("gpus", by_day(4)[1:])
def test_a_hierarchical_all_reduce(on_gpus, gpus):
    """Must catch: a leader that sends in the group of its node before the node's sum is there."""
    on_gpus(gpus, cases.hierarchical).is_right()


OF_THE_CORE = ("1F1B", "GPipe", "interleaved 1F1B", "eager 1F1B")
ZERO_BUBBLE = ("zero-bubble H1", "zero-bubble H2")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name, by_core, tied",
    [
        *((name, False, 1) for name in (*OF_THE_CORE, *ZERO_BUBBLE)),
        *((name, True, 1) for name in OF_THE_CORE),
        ("eager 1F1B", False, 0),
        *at_night(
            *((name, False, 0) for name in ("GPipe", "1F1B", "interleaved 1F1B", *ZERO_BUBBLE)),
            *((name, True, 0) for name in OF_THE_CORE),
        ),
    ],
)
@pytest.mark.parametrize("gpus", by_day(4))
def test_pipelines(on_gpus, gpus, name, by_core, tied):
    """Must catch: no first message of each pair when a pipeline is made (drop Wire.connect()), with
    a tied weight or with messages posted ahead (`self.ahead = True`); in the core, one group for
    both directions, tied gradients that count an earlier sum twice."""
    on_gpus(gpus, cases.pipelined, name, tied, by_core).is_right()


@pytest.mark.one_in(2)
@pretended_only
@pytest.mark.parametrize("make", ["hardened", "core"])
def test_pipelines_share_communicators(on_gpus, make):
    """Must catch: new groups for each pipeline: each keeps communicators and threads for good."""
    on_gpus(4, cases.pipelines_again, make).is_right()


def test_activations_are_let_go(on_gpus):
    """Must catch: record_stream; activations that are held until backward; a host that waits."""
    on_gpus(1, offload.activations_are_let_go).is_right()


@pytest.mark.parametrize("gpus", COUNTS)
def test_core_mixed_precision(on_gpus, gpus):
    """Must catch: a question on the host for each gradient, a flag on the CPU."""
    on_gpus(gpus, cases.core_masters_and_a_scale).is_right(1)  # whether all gradients are finite


# --- one process ----------------------------------------------------------------------------------


# On more GPUs each process would do the same.
MOST_OF_SAVE_ON_CPU = 200  # PyTorch waits for each tensor that it saves
POLICIES_BY_KIND = [
    *((name, "shardlab") for name in POLICIES),
    *((name, "torch.amp") for name in ("AUTOCAST_BF16", "AUTOCAST_FP16")),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in WAYS if name != ON_CPU])
def test_recomputation(on_gpus, name):
    """Must catch: a second run under other kernels than the first, a value that is read on the
    host to compare both runs."""
    on_gpus(1, one_gpu.recomputed, name).is_right()


def test_save_on_cpu(on_gpus):
    """Must catch: pinned memory that is not seen as pinned."""
    on_gpus(1, one_gpu.recomputed, ON_CPU).is_right(MOST_OF_SAVE_ON_CPU)


def test_activations_on_the_host(on_gpus):
    """Must catch: a copy that blocks, or goes to memory that is not pinned."""
    on_gpus(1, one_gpu.activations_on_the_host).is_right()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["hooks", "selective", "core, hooks", "core, function"])
def test_dropout_in_a_recomputation(on_gpus, name):
    """Must catch: a second run that restores the CPU's random state alone."""
    on_gpus(1, one_gpu.recomputed_with_dropout, name).is_right()


@pytest.mark.parametrize("name", one_gpu.LOSSES)
def test_losses_without_logits(on_gpus, name):
    """Must catch: a number of known targets that the host reads; words of a tile that are counted
    on the CPU."""
    on_gpus(1, one_gpu.without_logits, name).is_right()


@pytest.mark.parametrize("name, kind", POLICIES_BY_KIND)
def test_policies(on_gpus, name, kind):
    """Must catch: gradients that are not unscaled, a scaler that asks the host about each
    gradient (its budget is 3 waits a step), autocast of another device."""
    on_gpus(1, one_gpu.policy_of, name, kind).is_right(3 if POLICIES[name].needs_scale else 0)


def test_float8(on_gpus):
    """Must catch: a scale of a block that is made on the CPU; factors that nothing rounds."""
    on_gpus(1, one_gpu.float8).is_right()


def test_stochastic_rounding(on_gpus):
    """Must catch: random bits that come from the CPU."""
    on_gpus(1, one_gpu.stochastic_rounding).is_right()


@pytest.mark.parametrize("gpus", by_day(2)[:2])
def test_prefetched_batches(on_gpus, gpus):
    """Must catch: memory that is not pinned, or a slice of it, so that the host copies; a batch
    that is handed over before its copy has ended (drop wait_event), or whose memory is given away
    while it is read (drop record_stream); a thread that takes GPU 0 for every rank's."""
    on_gpus(gpus, one_gpu.prefetched_batches).is_right()


def test_ledger_and_account(on_gpus):
    """Must catch: a counter of the allocator that is read at another moment than the ledger's."""
    on_gpus(1, one_gpu.ledger_and_account).is_right()


def test_the_pretended_gpu_computes_as_the_cpu(on_gpus):
    """Must catch: a view that becomes a copy in device.cpp, a result in place that gets lost."""
    on_gpus(1, one_gpu.double_precision_is_close).is_right()


# --- the pretended GPUs themselves ----------------------------------------------------------------


@pretended_only
@pytest.mark.parametrize(
    "case",
    [
        device.two_devices_are_refused,
        device.waits_are_counted,
        device.hidden_waits_are_the_devices_own,
        device.memory_is_counted_and_holds_garbage,
        device.backward_runs_in_another_thread,
        device.random_numbers_are_the_devices_own,
    ],
)
def test_a_gpu(on_gpus, case):
    """Must catch: check_devices() or note_waits() left out of an operator's call in device.cpp,
    memory that comes as zeros, results that are not counted, a guard that is not registered (then
    backward runs in the caller's thread), numbers drawn from the CPU's generator."""
    on_gpus(1, case).is_right()


@pretended_only
@pytest.mark.parametrize(
    "case",
    [
        device.a_collective_wants_contiguous_tensors_of_the_gpu,
        device.collectives_give_sums_and_averages,
        device.tags_are_ignored,
        device.a_message_in_a_batch_has_no_work,
        device.a_future_gives_tensors_and_keeps_none,
    ],
)
def test_nccl(on_gpus, case):
    """Must catch: check_tensor() left out, an average without its division, a send that goes by its
    tag, a batch with a work for each message, a work that keeps the tensors of its future for good,
    a second future without them."""
    on_gpus(4, case).is_right()


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


@pretended_only
def test_a_machine_without_a_compiler_says_what_to_install(monkeypatch, tmp_path):
    """Must catch: a test that passes or fails obscurely where there is no compiler; a skip on a
    continuous integration machine."""
    monkeypatch.setattr(build, "COMPILERS", ())
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    with pytest.raises(build.CannotBuild, match=r"apt-get install g\+\+") as raised:
        build.library()
    with pytest.raises(pytest.skip.Exception):
        no_gpus(raised.value, continuous_integration=False)
    with pytest.raises(pytest.fail.Exception, match="never skipped"):
        no_gpus(raised.value, continuous_integration=True)


@pretended_only
def test_another_pytorch_is_named(monkeypatch, tmp_path):
    """Must catch: a failure of the job with the oldest PyTorch, into which nccl.py reaches
    differently; a device.cpp with an error that is excused, or leaves a library behind."""
    monkeypatch.setattr(build, "FOLDER", tmp_path)
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
