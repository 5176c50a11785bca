"""ZeRO's options beside the plain model; bytes kept and sent against the formulas. Parity of all
kinds of models and trainings is in test_random_models.py, what users do in rows.md.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from operators import Operators
from solved import Given
from tables import far
from torch import nn
from torch.utils.checkpoint import checkpoint

from coursekit.formulas import RECIPES, evaluate
from coursekit.topics.zero.fast_ring import FastRing
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab import collectives, zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.zero.hardened import stage3
from shardlab.zero.hardened.arriving import StillComing
from shardlab.zero.hardened.flat import Native, Ring
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.offload import cpu_offload

STAGES = (1, 2, 3)


def in_small_parts():
    """A ring with messages of a few elements, as a large model has of a few megabytes."""
    return FastRing(small_bytes=16, piece_bytes=80)


# --- models ---------------------------------------------------------------------------------------


random_values = partial(drawn, std=0.3)
TIED = dict(layers=2, hidden=8, heads=2, vocabulary=11, max_sequence=5)
# its units have 126, 525 and 98 parameters: 2, 3 and 4 ranks each fail to divide some
GATED = dict(TIED, layers=3, hidden=7, heads=7, key_value_heads=1, feed_forward=19, vocabulary=13)
GATED |= dict(biases=0, gated_mlp=1, tied_head=0)
MODELS = {"tied": lambda: GPT(GPTConfig(**TIED)), "gated": lambda: GPT(GPTConfig(**GATED))}


def units_of(model):
    return [model.embedding, *model.blocks, model.head]


def loss_of(model, batch):
    return next_token_loss(model(batch[:, :-1]), batch[:, 1:])


def batches(model, count, size, seed=1):
    torch.manual_seed(seed)
    return [torch.randint(model.config.vocabulary, (size, 6)) for _ in range(count)]


def shard(stage, model, optimizer_cls, bucket_bytes=6000, **options):
    """The optimizer under the stage. Buckets are small, so that there are several."""
    own = dict(bucket_bytes=bucket_bytes) if stage < 3 else dict(units=units_of(model))
    return zero.shard(model, optimizer_cls, stage=stage, **own, **options)[1]


def flats_of(stage, model, optimizer):
    """(shards, elements of the flat tensor that it is cut from), of trained parameters."""
    if stage < 3:
        return [(bucket.shards, bucket.flat.numel()) for bucket in optimizer.buckets]
    flats = [flat for unit in stage3.sharded_units(model) for flat in unit.sharded_unit.flats]
    return [(flat.shards, flat.full.numel()) for flat in flats if flat.shards[0].requires_grad]


def whole_parameters(stage, model):
    if stage < 3:
        return {name: p.detach().clone() for name, p in model.named_parameters()}
    with unsharded(model):
        return {name: p.detach().clone() for name, p in model.named_parameters()}


# --- parity ---------------------------------------------------------------------------------------


def copied_by_a_unit(size):
    """Elements that forward copies, that backward copies, that the memory of the shards' gradients
    has beyond these, and all that are gathered."""
    net = nn.Linear(size, 1)
    stage3.fully_shard(net, collectives=Native())
    (flat,) = net.sharded_unit.flats
    with Operators() as there:
        found = net(torch.ones(1, size))
    with Operators() as back:
        found.sum().backward()
    gradient = flat.shards[0].grad.untyped_storage()
    mine = sum(shard.grad.numel() for shard in flat.shards)
    return made(there), made(back), gradient.nbytes() // 4 - mine, flat.full.numel()


def made(operators):
    """The number of elements that operators have written."""
    writes = "cat", "copy_", "clone", "mul", "mul_", "new_zeros", "zero_"
    seen = zip(operators.names(), operators.seen)
    return sum(elements for name, (_, elements) in seen if name in writes)


def test_a_unit_of_any_size_is_copied_as_one_that_ranks_divide(three):
    """Must catch: a copy of all chunks before or after they are gathered; a second copy of
    gradients; a whole padded gradient that lives on behind the shard's."""
    for rank, even in enumerate(three.run(copied_by_a_unit, 998)):
        for size, zeros in ((999, 2), (1000, 1)):
            there, back, behind, elements = three.run(copied_by_a_unit, size)[rank]
            assert (there, elements) == (even[0], size + 1 + zeros)
            assert back <= even[1] + 4 * zeros + 2 and behind <= zeros


def gathered_in_place():
    """(elements that the second step copies, whether the parameters are on their way after it, the
    messages that somebody has to wait for)."""
    net = nn.Linear(9, 10)
    options = dict(collectives=Native(), prefetch=True, lr=0.1)
    _, optimizer = zero.shard(net, torch.optim.SGD, stage=2, **options)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(1, 9)).sum().backward()
        with Operators() as operators:
            optimizer.step()
    waits = sum(len(bucket.gathering.waits) for bucket in optimizer.buckets)
    return made(operators), isinstance(net.weight, StillComing), waits


def test_a_bucket_of_any_size_is_gathered_in_place(three):
    """Mutations: no zeros behind them, so that all are copied; only even buckets travel early;
    step() without arrive(), so that messages of former steps pile up."""
    assert three.run(gathered_in_place) == [(0, True, 1)] * 3


def in_one_memory(stage):
    """Relative difference of the gradients of two parameters from the plain model's, where autograd
    gives both the same memory."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(dist.get_rank())
    pair = nn.ParameterList([nn.Parameter(torch.zeros(31)), nn.Parameter(torch.zeros(31))])
    optimizer = shard(stage, pair, torch.optim.SGD, lr=1.0, collectives=in_small_parts())
    weights = torch.randn(31)
    (torch.stack(list(pair)).sum(0) * weights).sum().backward()
    if stage == 1:
        assert pair[0].grad.data_ptr() == pair[1].grad.data_ptr(), (
            "autograd has changed: take another model"
        )
    optimizer.step()
    dist.all_reduce(weights)
    return max(far(p, -weights / dist.get_world_size()) for p in pair)


def test_gradients_in_one_memory(three):
    """Two parameters that are stacked and summed, as in PyTorch. Mutation: the ring makes its sums
    in the gradients."""
    for stage in (1, 2):
        assert max(three.run(in_one_memory, stage)) <= 1e-12, stage


def test_what_one_rank_reduces(worlds):
    """Must catch: a sum of one that is the gradient itself."""
    assert worlds(1).run(reduced_is_new) == [True]


def reduced_is_new():
    given = torch.zeros(100)
    return all(
        chosen.reduce_scatter([given])[0].data_ptr() != given.data_ptr()
        # the last puts nothing together with others, which would copy it
        for chosen in (Ring(), Native(), FastRing(small_bytes=0))
    )


def recomputed(reentrant):
    """Gatherings of the blocks' units, with PyTorch's activation checkpointing around blocks."""
    model = random_values(MODELS["gated"], 0)
    stage3.fully_shard(model, units_of(model))
    gathered = []
    for unit in stage3.sharded_units(model):
        sharded = unit.sharded_unit

        def counted(unit=unit, whole=sharded, gather=sharded.gather):
            gathered.extend([] if whole.whole else [unit])
            gather()

        sharded.gather = counted
    (batch,) = batches(model, 1, 2)
    x = model.embedding(batch[:, :-1])
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=reentrant)
    next_token_loss(model.head(x), batch[:, 1:]).backward()
    return [gathered.count(block) for block in model.blocks]


def test_with_activation_checkpointing(three):
    """Must catch: a recomputed forward that gathers again."""
    assert three.run(recomputed, False) == [[2, 2, 2]] * 3
    assert three.run(recomputed, True) == [[3, 3, 3]] * 3


# --- options --------------------------------------------------------------------------------------


def reduced_again():
    """Messages of a reduction that follows a clipping, as that of step()."""
    model = random_values(MODELS["tied"], 0)
    optimizer = shard(1, model, torch.optim.SGD, lr=0.1, collectives=in_small_parts())
    loss_of(model, batches(model, 1, 2)[0]).backward()
    clip_gradients(optimizer, 0.05)
    with CommunicationLog() as log:
        optimizer.reduce_gradients()
    return len(log.messages), max(len(bucket.shards) for bucket in optimizer.buckets) > 2


def test_clipping_reduces_once(three):
    """Must catch: stage 1 reduces twice; a bucket whose shard is in one part, so that random models
    in small parts prove nothing."""
    assert three.run(reduced_again) == [(0, True)] * 3


@pytest.mark.parametrize("per_microbatch", [False, True])
def test_offloaded_master_weights_of_a_model_with_norms_in_fp32(per_microbatch):
    """Must catch: norms' gradients lost between clipping and the step, or those of all microbatches
    but the last; parameters that wait for the update of others before they go back."""
    ends, back = [], []
    for kind in (MasterWeights, cpu_offload(MasterWeights)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.LayerNorm(4))
        optimizer = kind(model.parameters(), torch.optim.SGD, at_once_bytes=1, lr=8.0)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for x in torch.randn(2, 3, 4, dtype=torch.bfloat16):
            model[1](model[0](x).float())[:, 0].square().sum().backward()
            if per_microbatch:
                optimizer.take_gradients()
        clip_gradients(optimizer, 0.5)
        optimizer.inner.register_step_pre_hook(
            lambda *_, own=optimizer: back.append(len(getattr(own, "returning", "")))
        )
        optimizer.step()
        ends.append([parameter.detach() for parameter in model.parameters()])
        assert not any(map(torch.equal, before, ends[-1]))
    assert all(map(torch.equal, *ends))
    assert back == [0, 0, 0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("consumes", [False, True])
def test_the_scaler_looks_at_gradients_before_they_go_to_the_host(consumes):
    """Must catch: a scaler that asks the copies on the host, which have no gradient yet."""
    ends = []
    for kind in (MasterWeights, cpu_offload(MasterWeights)):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).half()
        optimizer = kind(model.parameters(), torch.optim.SGD, consume_gradients=consumes, lr=0.1)
        scaler = LossScaler(2.0**15)
        for factor in (1000.0, 1.0):  # which overflows, and does not
            optimizer.zero_grad()
            loss = model(torch.ones(1, 4, dtype=torch.half)) * factor
            scaler.scale(loss.float().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**14
        ends.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *ends))


@pytest.mark.parametrize("how", ["clipped", "scaled", "with a frozen one"])
def test_offload_of_a_plain_model(how):
    """Must catch: a norm of no gradients at all; names that are taken for tensors."""
    ends = []
    for kind in (torch.optim.AdamW, cpu_offload(torch.optim.AdamW)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
        model[0].bias.requires_grad_(how != "with a frozen one")
        optimizer = kind(model.named_parameters(), lr=0.1)
        optimizer.add_param_group({"params": [("more", nn.Parameter(torch.ones(2)))]})
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3, dtype=torch.float64)).square().sum().backward()
            if how == "scaled":
                scaler.scale(torch.ones(()))
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                continue
            norm = clip_gradients(optimizer, 0.1)
            assert norm > 0.1
            optimizer.step()
        ends.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *ends))


def ahead_or_not():
    """(same parameters bit by bit, bytes gathered and reduced by both, most bytes whole at a
    time)."""
    torch.set_default_dtype(torch.float32)
    ends, sizes, most = [], [], []
    for ahead in (False, True):
        model = random_values(MODELS["gated"], 0)
        stage3.fully_shard(model, units_of(model), collectives=Native(), prefetch=ahead)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with CommunicationLog() as log:
            for step, batch in enumerate(batches(model, 4, 2)):
                optimizer.zero_grad()
                with Ledger(model) as ledger:
                    loss_of(model, batch).backward()
                optimizer.step()
                # evaluations in between; then a change
                if step == 2:
                    with torch.no_grad():
                        loss_of(model, batch)
                        loss_of(model, batch)
                        for p in model.parameters():
                            p.add_(0.01)
        totals = log.totals()
        sizes.append([totals[name].nbytes for name in ("all_gather", "reduce_scatter")])
        most.append(max(point.bytes.gathered for point in ledger.timeline))
        ends.append(whole_parameters(3, model))
    return all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0]), sizes, most


def test_gathering_ahead(three):
    """Mutations: a unit gathered before the step used after it; three units whole at a time. (That
    messages overlap is in tests/virtual.)"""
    block = sum(p.numel() for p in MODELS["gated"]().blocks[0].parameters())
    for same, (without, ahead), most in three.run(ahead_or_not):
        assert same and most == [4 * block, 8 * block]
        assert without == ahead


class Noting(Native):
    """Notes when a reduce-scatter begins and when it is waited for."""

    def __init__(self, seen):
        self.seen = seen

    def begin_reduce_scatter(self, tensors, group, share):
        self.seen.append("begins")
        wait = super().begin_reduce_scatter(tensors, group, share)
        return lambda: [self.seen.append("ends"), wait()][1]


def buckets_on_their_way(stage):
    """(events of the buckets of a backward, in order; how many parameters each bucket has)."""
    seen = []
    model = nn.Sequential(*(nn.Linear(32, 32, bias=k > 0) for k in range(4)))
    options = dict(collectives=Noting(seen), prefetch=True, bucket_bytes=4 * 32 * 32)
    _, optimizer = zero.shard(model, torch.optim.SGD, stage=stage, **options)
    x, between = torch.ones(2, 32), model[1].weight
    between.register_hook(lambda _: seen.append("computes"))
    model(x).sum().backward()
    return seen, [len(bucket.parameters) for bucket in optimizer.buckets]


@pytest.mark.parametrize("stage", (1, 2))
def test_a_bucket_travels_under_the_next_ones_backward(worlds, stage):
    """Mutations: all buckets waited for at the end, or each at once; a large weight copied with a
    small bias."""
    for seen, sizes in worlds(2).run(buckets_on_their_way, stage):
        one = ["begins", "ends"]
        assert sizes == [1, 1, 3, 1, 1]
        assert seen == [*one, *one, "begins", "computes", "ends", *one, *one]


def in_16_bits():
    """(output equals the 16-bit model's and shards hold what 16 bits cannot, dtypes that rest,
    bytes sent, flat sizes)."""
    torch.set_default_dtype(torch.float32)
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = random_values(MODELS["gated"], 0).bfloat16(), random_values(MODELS["gated"], me)
    stage3.fully_shard(ours, units_of(ours), compute_dtype=torch.bfloat16)
    batch = batches(plain, 1, 2 * n)[0]
    part = batch[2 * me : 2 * me + 2]
    with CommunicationLog() as log:
        output = ours(part[:, :-1])
        next_token_loss(output, part[:, 1:]).backward()
    same = torch.equal(output, plain(part[:, :-1])) and all(
        (p != p.bfloat16()).any() for p in ours.parameters() if p.numel()
    )
    sizes = [size for _, size in flats_of(3, ours, None)]
    dtypes = {p.dtype for p in ours.parameters()} | {p.grad.dtype for p in ours.parameters()}
    return same, dtypes, log.totals()["send"].nbytes, sizes


def test_16_bits_over_fp32_shards(three):
    """Mutation: shards rounded once and for all; gradients that travel in fp32."""
    for me, (same, dtypes, nbytes, sizes) in enumerate(three.run(in_16_bits)):
        given = dict(
            zero_stage=3,
            data_parallel=three.world_size,
            rank=me,
            accumulation_steps=1,
            parameter_element_bytes=2,
            gradient_element_bytes=2,
        )
        assert same and dtypes == {torch.float32}
        assert nbytes == summed(["zero_sent_bytes"], sizes, **given)[0]


# --- bytes ----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "fp32 Adam": (torch.optim.AdamW, {}),
    "bf16, no master": (torch.optim.AdamW, {}),
    "fp32 SGD momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
}
KEPT = ("zero_parameter_bytes", "zero_gradient_bytes", "zero_optimizer_bytes")


def summed(targets, sizes, **given):
    """The formulas, over flat tensors of these sizes."""
    each = [evaluate(targets, allow_unused=True, parameters=size, **given) for size in sizes]
    return tuple(sum(values[target] for values in each) for target in targets)


def weighed(stage, recipe):
    """(elements of the flat tensors; bytes of parameters and gradients when backward is done, of
    optimizer states and gradients after the step; bytes gathered when backward is done) on this
    rank, by the ledger."""
    torch.set_default_dtype(torch.bfloat16 if recipe.startswith("bf16") else torch.float32)
    model = random_values(MODELS["gated"], 0)
    cls, kwargs = OPTIMIZERS[recipe]
    optimizer = shard(stage, model, cls, **kwargs)
    batch = batches(model, 1, 2)[0]
    with Ledger(model, optimizer) as ledger:
        loss_of(model, batch).backward()
        optimizer.step()
    torch.set_default_dtype(torch.float32)
    done = [point.bytes for point in ledger.timeline if point.phase == "backward"][-1]
    sizes = [size for _, size in flats_of(stage, model, optimizer)]
    return (
        sizes,
        (done.parameters, done.gradients, ledger.bytes.optimizer, ledger.bytes.gradients),
        done.gathered,
    )


def test_bytes_of_each_rank(world):
    """Mutations: ceil_div for floor_div; the last shards the larger ones; whole gradients kept in
    stage 2; a flat tensor of gradients kept alive by a view that is the shard's gradient; gathered
    parameters kept after backward."""
    n, parameters = world.world_size, sum(p.numel() for p in MODELS["gated"]().parameters())
    for stage in STAGES:
        for recipe in OPTIMIZERS if n == 3 else ("fp32 Adam",):
            for me, (sizes, kept, gathered) in enumerate(world.run(weighed, stage, recipe)):
                given = dict(
                    zero_stage=stage, data_parallel=n, rank=me, **RECIPES[recipe].quantities
                )
                want = list(summed(KEPT, sizes, **given))
                want[2] += Given(
                    zero_stage=stage,
                    zero_flat_tensors=len(sizes),
                    parameter_tensors=len(list(MODELS["gated"]().parameters())),
                    **RECIPES[recipe].quantities,
                ).zero_step_counter_bytes
                # stage 1 has reduced them
                want += summed(["zero_gradient_bytes"], sizes, **{**given, "zero_stage": 2})
                assert (list(kept), gathered) == (want, 0), (stage, recipe, me)
                assert sum(sizes) == parameters
                total = summed(["zero_states_bytes"], sizes, **given)[0]
                assert total == sum(summed(KEPT, sizes, **given))


def sent(stage, microbatches):
    """(elements of the flat tensors, bytes that this rank sent in a step of so many
    microbatches)."""
    torch.set_default_dtype(torch.float32)
    model = random_values(MODELS["tied"], 0)
    if stage == 0:
        flats = [torch.zeros(size) for size in (101, 57)]
        with CommunicationLog() as log:
            for flat in flats:
                collectives.all_reduce(flat)
        return [flat.numel() for flat in flats], log.totals()["send"].nbytes
    optimizer = shard(stage, model, torch.optim.SGD, lr=0.1)
    with CommunicationLog() as log:
        for batch in batches(model, microbatches, 2):
            loss_of(model, batch).backward()
        optimizer.step()
    return [size for _, size in flats_of(stage, model, optimizer)], log.totals()["send"].nbytes


def test_bytes_on_the_wire(world):
    """2 Psi, (k + 1) Psi and 3k Psi, of which n ranks send (n - 1)/n. Mutations: stage 1 reduces in
    every backward; stage 3 gathers once, or three times, a microbatch; stage 2 taken for stage
    1."""
    n = world.world_size
    for stage in (0, *STAGES):
        for k in (1, 3):
            for me, (sizes, nbytes) in enumerate(world.run(sent, stage, k)):
                given = dict(
                    zero_stage=stage,
                    data_parallel=n,
                    rank=me,
                    accumulation_steps=k,
                    parameter_element_bytes=4,
                    gradient_element_bytes=4,
                )
                assert nbytes == summed(["zero_sent_bytes"], sizes, **given)[0], (stage, k, me)
                (elements,) = summed(
                    ["zero_traffic_parameters"], sizes, zero_stage=stage, accumulation_steps=k
                )
                assert elements == sum(sizes) * {0: 2, 1: 2, 2: k + 1, 3: 3 * k}[stage]


class Chain(nn.Module):
    """Large weights and almost no activations; the root has a weight of its own."""

    def __init__(self, size=128, layers=4):
        super().__init__()
        self.root = nn.Linear(size, size // 2, bias=False)
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.root(x)


def whole_at_a_time():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = Chain()
    stage3.fully_shard(model, model.layers)
    with Ledger(model) as ledger:
        loss = model(torch.ones(1, 128)).sum()
        after_forward = ledger.bytes.gathered
        loss.backward()
    most = {
        phase: max(point.bytes.gathered for point in ledger.timeline if point.phase == phase)
        for phase in ("forward", "backward")
    }
    peak = ledger.peak.bytes
    return (
        most,
        after_forward,
        ledger.bytes.gathered,
        peak.total - peak.parameters - peak.gradients,
        ledger.peak.phase,
    )


def test_what_is_whole_at_a_time(world):
    """Mutations: reshard left out after forward, or after backward; autograd keeps a copy of a
    weight (views made with .clone()); the parameters freed only when their gradients have been
    reduced."""
    unit, root = 128 * 128, 128 * 64
    for most, after_forward, after, beside, phase in world.run(whole_at_a_time):
        given = dict(
            zero_unit_parameters=unit,
            zero_root_parameters=root,
            parameter_element_bytes=4,
            gradient_element_bytes=4,
        )
        want = Given(**given)
        assert most == dict(forward=want.zero_gathered_bytes, backward=want.zero_gathered_bytes)
        assert (after_forward, after, phase) == (0, 0, "backward")
        travelling = 2 * 4 * -(-unit // world.world_size)
        assert 0 <= beside - want.zero_transient_bytes <= travelling + 4 * 128 * 20


# --- what else can happen -------------------------------------------------------------------------
