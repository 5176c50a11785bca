"""Tables that the tests of all techniques share: models, doors to the techniques, what users do.
`said_of("stage 1", unfrozen_later)` on a rank is "right", as in the plain model, which sees the
parts of all ranks, or the sentence that it says. A door puts a model under a technique, trains it
and has it whole again. rows.md has the rows; those of one technique alone are in its tests."""

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from refusals import answer_of, begins
from torch import Tensor, nn
from torch.nn import utils
from torch.optim import SGD

from coursekit.topics.data_parallelism.ladder import Bucketed, ParameterServer, PerTensor
from coursekit.topics.zero.fast_ring import FastRing
from ranklab.measure.communication import CommunicationLog
from shardlab import data_parallel, zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision import MasterWeights
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import one_f_one_b
from shardlab.tensor_parallel import apply_tensor_parallel, overlapped
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows
from shardlab.zero import core, core_stage3
from shardlab.zero.hardened.arriving import ChunkOfSum
from shardlab.zero.hardened.flat import Native, own_chunk
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import fully_shard

RIGHT = "right"
# relative: sums over ranks are made in another order, and 16 bits round
CLOSE = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}


# --- models ---------------------------------------------------------------------------------------


def linears(*sizes: int, bias: bool = True) -> nn.Sequential:
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairs))


def two_layers() -> nn.Sequential:
    return linears(4, 7, 3)


def loss_of(y: Tensor, targets: Tensor | None = None) -> Tensor:
    return (y - 1).square().mean()


def far(ours: Tensor, plain: Tensor) -> float:
    """Largest difference, relative to the largest element."""
    return ((ours - plain).abs().max() / plain.abs().max().clamp(min=1e-300)).item()


def right(found, want) -> str:
    return RIGHT if found == want else f"{found}"


def frozen_bias(frozen: bool) -> nn.Module:
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(not frozen)
    return net


def with_max_norm(longest: float | None, trained: bool = True, kind=nn.Embedding) -> nn.Module:
    net = nn.Sequential(kind(5, 2, max_norm=longest), nn.Linear(2, 2))
    net[0].weight.requires_grad_(trained)
    return net


def turned(last: bool) -> nn.Module:
    """Parameters of equal sizes in another order."""
    layers = [("a", nn.Linear(4, 6, bias=False)), ("b", nn.Linear(6, 4, bias=False))]
    return nn.ModuleDict(dict(layers[:: -1 if last else 1]))


def in_inference_mode(last: bool) -> nn.Module:
    with torch.inference_mode(last):
        return linears(3, 3)


@torch.inference_mode()
def with_a_table() -> nn.Module:
    with torch.inference_mode(False):
        net = linears(3, 3)
    net.register_buffer("table", torch.ones(2))
    return net


# What cannot be replicated or sharded; ranks differ where the last one is told apart.
ODD = {
    "another shape": lambda last: nn.Linear(2, 3 + last),
    "a layer more": lambda last: linears(*[2] * (2 + last)),
    "another order": turned,
    "frozen on one rank": frozen_bias,
    "lazy": lambda last: nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)),
    "lazy on one rank": lambda last: nn.LazyLinear(2) if last else nn.Linear(4, 2),
    "no parameters": lambda last: nn.Tanh(),
    "nothing trained": lambda last: nn.Linear(2, 2).requires_grad_(False),
    "two devices": lambda last: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")),
    "replicas inside": lambda last: nn.Sequential(DistributedDataParallel(linears(4, 2))),
    "rows that change": lambda last: with_max_norm(1.0 if last else None),
    "rows of bags": lambda last: with_max_norm(1.0 if last else None, kind=nn.EmbeddingBag),
    "frozen rows": lambda last: with_max_norm(1.0 if last else None, trained=False),
    "inference mode": in_inference_mode,
    "a table of inference mode": lambda last: with_a_table(),
    "a script": lambda last: nn.Sequential(torch.jit.script(nn.Linear(4, 4))),
}


# --- doors ----------------------------------------------------------------------------------------


class Door:
    """A technique that replicates or shards: each rank has a part of the batch."""

    alike = False  # whether all ranks have to begin with the same values
    everywhere = True  # whether each rank has every parameter in the end

    def __init__(self, shard: Callable):
        self.shard = shard  # (net, rule, **settings) -> (the model to call, its optimizer)

    def whole(self, net: nn.Module) -> dict[str, Tensor]:
        return dict(net.named_parameters())

    def part(self, x: Tensor) -> Tensor:
        return x.chunk(dist.get_world_size())[dist.get_rank()]

    def backward(self, model: nn.Module, x: Tensor, loss: Callable = loss_of):
        dtype = next(model.parameters()).dtype
        loss(model(self.part(x).to(dtype))).backward()


class Stage3(Door):
    def whole(self, net):
        with unsharded(net):
            return {name: p.detach().clone() for name, p in net.named_parameters()}


class CoreStage3(Door):
    def whole(self, net):
        return core_stage3.whole_parameters(net)


class Server(Door):
    """It alone steps."""

    everywhere = False

    def whole(self, net):
        return {} if dist.get_rank() else super().whole(net)


class Alone(Door):
    """Each rank has the whole batch."""

    alike = True

    def part(self, x):
        return x


class Parts(Alone):
    """Tensor parallelism."""

    def whole(self, net):
        return whole_state_dict(net)


class Stages(Door):
    """A pipeline of one layer on each rank, which takes the whole batch in two microbatches."""

    alike, everywhere = True, False

    def whole(self, net):
        return {name.removeprefix("layers."): p for name, p in net.named_parameters()}

    def backward(self, model, x, loss=None):
        model.step(x, x)


def replicated(kind, net, rule, options=(), **settings):
    model = kind(net, **dict(options))
    return model, rule(model.parameters(), **settings)


def cut_by_width(net, rule, as_planned=lambda plan: plan, **settings):
    plan = {"0": Around(), "0.0": Columns(7), "0.1": Rows(7)}
    model = apply_tensor_parallel(nn.Sequential(net), as_planned(plan))
    return model, rule(model.parameters(), **settings)


def cut_by_depth(net, rule, **settings):
    n = dist.get_world_size()
    plan = plan_pipeline(list(net), one_f_one_b(n, 2), torch.zeros(2 * n, net[0].in_features))
    model = Pipeline(list(net), plan, loss_of)
    return model, rule(model.parameters(), **settings)


def by_the_core(kind, net, rule, **settings):
    return net, kind(net.parameters(), rule, **SMALL, **settings)


def by_hand(net, rule, cut=fully_shard, **settings):
    """Stage 3 with an optimizer that zero.shard has not seen."""
    cut(net, list(net))
    return net, rule(net.parameters(), **settings)


def in_half(net, rule, **settings):
    return net.bfloat16(), rule(net.parameters(), **settings)


def with_copies(net, rule, **settings):
    return in_half(net, MasterWeights, of=rule, **settings)


SMALL = dict(bucket_bytes=250)  # several buckets, one of several parameters
SMALL_PARTS = FastRing(small_bytes=16, piece_bytes=80)
DOORS = {
    "server": Server(partial(replicated, ParameterServer)),
    "per tensor": Door(partial(replicated, PerTensor)),
    "bucketed": Door(partial(replicated, Bucketed, options=SMALL)),
    "replicas": Door(partial(replicated, DistributedDataParallel, options=SMALL)),
    "stage 1": Door(partial(zero.shard, stage=1, **SMALL)),
    "stage 2": Door(partial(zero.shard, stage=2, **SMALL)),
    "stage 3": Stage3(partial(zero.shard, stage=3)),
    "core 0": Door(partial(replicated, data_parallel.core.DistributedDataParallel, options=SMALL)),
    "core 1": Door(partial(by_the_core, core.ShardedStates)),
    "core 2": Door(partial(by_the_core, core.ShardedGradients)),
    "core 3": CoreStage3(partial(by_hand, cut=core_stage3.fully_shard)),
    "by hand": Stage3(by_hand),
    "16 bits": Alone(in_half),
    "masters": Alone(with_copies),
    "tensor": Parts(cut_by_width),
    "overlap": Parts(partial(cut_by_width, as_planned=partial(overlapped, chunks=3))),
    "pipeline": Stages(cut_by_depth),
}
for name, chosen in (("native", Native()), ("fast", FastRing()), ("parts", SMALL_PARTS)):
    for stage, kind in ((1, Door), (2, Door), (3, Stage3)):
        door = kind(partial(zero.shard, stage=stage, collectives=chosen))
        DOORS[f"stage {stage} {name}"] = door


class LastMoment(Native):
    """Messages that take place when somebody waits for them. Until then what comes from other ranks
    is not a number."""

    def begin_reduce_scatter(self, tensors, group, share):
        taken = [tensor.clone() for tensor in tensors]
        size = sum(self.parts_of_a_shard(tensors, group))
        mean = taken[0].new_full((size,), torch.nan)
        tensors.clear()

        def arrive():
            (part,) = super(LastMoment, self).begin_reduce_scatter(taken, group, share)()
            mean.copy_(part)

        return ChunkOfSum(mean, taken[0], arrive)

    def begin_all_gather(self, flat, group, own=None):
        own = (own_chunk(flat, group) if own is None else own).clone()
        if flat.is_floating_point():
            flat.fill_(torch.nan)
        own_chunk(flat, group).copy_(own)
        return lambda: super(LastMoment, self).begin_all_gather(flat, group, own)()


ahead = partial(zero.shard, stage=3, collectives=LastMoment(), prefetch=True)
DOORS["stage 3 ahead"] = Stage3(ahead)
for stage in (1, 2):
    options = dict(collectives=LastMoment(), prefetch=True, bucket_bytes=250)
    DOORS[f"stage {stage} ahead"] = Door(partial(zero.shard, stage=stage, **options))
for stage, kind in ((1, Door), (2, Door), (3, Stage3)):
    DOORS[f"stage {stage} offload"] = kind(partial(zero.shard, stage=stage, offload=True))

REPLICAS = ("server", "per tensor", "bucketed", "replicas")
STAGES = ("stage 1", "stage 2", "stage 3")
CORES = ("core 0", "core 1", "core 2", "core 3")


class Beside:
    """A model behind a door on this rank, and the plain one with rank 0's values.

    before    what is done with the net first; what it returns is kept"""

    def __init__(self, door: Door, make=two_layers, rule=SGD, before=lambda net: None, **settings):
        self.door, self.number, settings = door, 0, {"lr": 0.1, **settings}
        self.plain, net = drawn(make, 0), drawn(make, 0 if door.alike else dist.get_rank())
        self.width = next(m.in_features for m in net.modules() if hasattr(m, "in_features"))
        self.kept = before(net)
        self.model, self.optimizer = door.shard(net, rule, **settings)
        self.net = self.model if isinstance(door, Stages) else net
        plain_rule = settings.pop("of", rule)  # of masters
        self.plain_optimizer = plain_rule(self.plain.parameters(), **settings)

    @property
    def nets(self) -> tuple[nn.Module, nn.Module]:
        return self.net, self.plain

    def inputs(self) -> Tensor:
        """Other rows on each rank and in each step."""
        self.number += 1
        rows = 2 * dist.get_world_size()
        return torch.randn(rows, self.width, generator=torch.Generator().manual_seed(self.number))

    def backward(self, x: Tensor | None = None):
        x = self.inputs() if x is None else x
        self.door.backward(self.model, x)
        loss_of(self.plain(x)).backward()

    def step(self):
        self.optimizer.step()
        self.plain_optimizer.step()

    def steps(self, count: int = 2) -> str:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.plain_optimizer.zero_grad()
            self.backward()
            self.step()
        return self.verdict()

    def verdict(self) -> str:
        found, want = self.door.whole(self.net), dict(self.plain.named_parameters())
        if self.door.everywhere and list(found) != list(want):
            return f"has {list(found)}"
        for name, parameter in found.items():
            difference = far(parameter.detach(), want[name].detach())
            if not difference <= CLOSE[parameter.dtype]:
                return f"{name} is {difference:.1e} off"
        return RIGHT


def said_of(name: str, row: Callable, *args) -> str:
    """On a rank: what the row answers, or the type and the sentence of what it raises."""
    torch.set_default_dtype(torch.float64)
    try:
        return answer_of(row, DOORS[name], *args) or "no word"
    finally:
        torch.set_default_dtype(torch.float32)


def check(world, name: str, row: Callable, args: tuple, expected: str):
    """Every rank says what is expected, or what begins so, and goes on. "..." stands for what is in
    between."""
    for found in world.run(said_of, name, row, *args):
        assert begins(found, expected), found


def takes(doors: tuple[str, ...], *rows: Callable | tuple) -> list:
    """Cases of a test: the doors' rows. A row is a function, or (function, *arguments, what is said
    behind which doors, one or several with commas)."""
    cases = []
    for row in rows:
        function, *args = row if isinstance(row, tuple) else (row,)
        said = args.pop() if args and isinstance(args[-1], dict) else {}
        said = {door: sentence for those, sentence in said.items() for door in those.split(", ")}
        for door in dict.fromkeys((*doors, *said)):
            if (sentence := said.get(door, RIGHT)) is not None:
                called = getattr(function, "func", function).__name__
                name = " ".join([door, called, *(str(getattr(a, "__name__", a)) for a in args)])
                cases.append(pytest.param(door, function, tuple(args), sentence, id=name[:60]))
    return cases


# --- rows: what a user does -----------------------------------------------------------------------


def two_steps(door, make=two_layers, rule=SGD, **settings):
    """Must catch: values of each rank's own at the beginning; no division by the number of ranks,
    or two; a step of the former parameters."""
    return Beside(door, make, rule, **settings).steps()


def made_of(door, name):
    """An odd model. Must catch: a check before the gathering, so that one rank raises alone; a
    comparison of the common part only."""
    door.shard(ODD[name](dist.get_rank() == dist.get_world_size() - 1), SGD, lr=0.1)


def made_twice(door, former=None):
    """A cell that runs again. Must catch: gradients divided or sent twice; hooks of the first that
    take the gradients away from the second."""

    def make(net):
        model, optimizer = (DOORS[former] if former else door).shard(net, SGD, lr=0.1)
        return model, optimizer, model(torch.ones(1, 4))

    sent = []
    for beside in (Beside(door), Beside(door, before=make)):
        with CommunicationLog() as log:
            beside.backward()
        beside.step()
        sent.append(len(log.messages))
    return beside.steps() if sent[0] == sent[1] else f"sends {sent}"


def by_the_former(door):
    """Must catch: a former optimizer that steps, and moves nothing; former replicas that compute
    and average nothing."""
    beside = Beside(door, before=lambda net: door.shard(net, SGD, lr=0.1))
    beside.backward()
    model, optimizer = beside.kept
    with torch.no_grad():
        model(beside.inputs())
    optimizer.step()
    model(beside.inputs())


def made_before(door, make, dtype=torch.float64):
    """The optimizer, before the model was behind the door. Must catch: a step that moves nothing,
    or what is whole alone, without a word; a refusal of what is right."""
    beside = Beside(door, before=lambda net: make(net.to(dtype).parameters()))
    beside.backward()
    beside.optimizer, beside.kept = beside.kept, beside.optimizer  # both are alive
    beside.step()
    return beside.verdict()


def under_replicas(door):
    """Must catch: gradients taken whose all-reduce is under way, or averaged twice."""
    beside = Beside(door, before=DistributedDataParallel)
    beside.model = beside.kept
    return beside.steps()


def replicated_afterwards(door):
    """Must catch: gradients that another one has averaged."""
    beside = Beside(door)
    beside.model = DistributedDataParallel(beside.model)
    return beside.steps()


def half_frozen():
    net = two_layers()
    net[0].requires_grad_(False)
    return net


def first_layers(beside):
    """The first layer of both models, which not every rank of a pipeline has."""
    for net in beside.nets:
        for name, module in net.named_modules():
            if name.removeprefix("layers.") == "0":
                yield module


def unfrozen_later(door):
    """Must catch: a parameter that was given and never trains, or by each rank's own gradient; a
    unit that remembers what was trained when it was sharded."""
    beside = Beside(door, half_frozen, momentum=0.9, weight_decay=0.1)
    beside.steps(1)
    for layer in first_layers(beside):
        layer.requires_grad_()
    return beside.steps()


def frozen_later(door):
    """Must catch: momentum that moves it; a wait for its gradient."""
    beside = Beside(door, momentum=0.9, weight_decay=0.1)
    beside.steps(1)
    for layer in first_layers(beside):
        layer.requires_grad_(False)
    return beside.steps()


def copied(door):
    """Must catch: a copy without hooks, whose gradients are each rank's own; memory or a forward of
    the original; PyTorch's own words about pickling a C++ object."""
    beside = Beside(door)
    beside.steps(1)
    twin = copy.copy(beside)
    twin.model, twin.plain = copy.deepcopy(beside.model), copy.deepcopy(beside.plain)
    twin.net = getattr(twin.model, "module", twin.model)
    for name in ("optimizer", "plain_optimizer"):
        net = twin.plain if name == "plain_optimizer" else twin.model
        setattr(twin, name, SGD(net.parameters(), lr=0.1))
    said = twin.steps()
    return said if said != RIGHT else beside.steps()


def loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copy_of_the_optimizer(door):
    """Must catch: a copy without buckets."""
    copy.deepcopy(Beside(door).optimizer)


def assigned(door):
    """Must catch: gradients of each rank's own, and copies that drift apart; shards of before."""
    beside = Beside(door)
    beside.steps(1)
    state = {name: tensor.clone() for name, tensor in beside.net.state_dict().items()}
    beside.net.load_state_dict(state, assign=True)
    return beside.steps(1)


def masked(door, when):
    """A hook of the user's sees this rank's own gradient. Must catch: a gradient that is changed
    while its sum is under way, or after this rank's part has left; a hook that finds no
    gradient."""

    def register(net):
        def mask(parameter):
            parameter.grad[0] = 0

        net[0].weight.register_post_accumulate_grad_hook(mask)

    beside = Beside(door, before=register if when == "before" else lambda net: None)
    if when == "after a step":
        beside.steps(1)
    for net in beside.nets if when != "before" else [beside.plain]:
        register(net)
    return beside.steps()  # which begin with zero_grad()


def in_16_bits(door, **options):
    """The sum of the ranks' gradients of 40,960 is more than fp16 has numbers for; their mean is
    not. Must catch: the division after the sum."""
    single = "compute_dtype" in options
    net = nn.Linear(1, 2, bias=False, dtype=torch.float32 if single else torch.float16)
    net.weight.data.zero_()
    model, optimizer = door.shard(net, SGD, lr=1.0, **options)
    model(torch.full((1, 1), 40_960.0, dtype=torch.float16)).sum().backward()
    optimizer.step()
    whole = [weight.unique().tolist() for weight in door.whole(net).values()]
    return RIGHT if whole == [[-40_960.0]][: len(whole)] else f"{whole}"


def sparse(door):
    """Must catch: a sparse gradient handed on to PyTorch, which asks for a bug report."""
    model, optimizer = door.shard(nn.Embedding(5, 3, sparse=True), SGD, lr=0.1)
    model(torch.arange(3)).sum().backward()
    optimizer.step()


def with_a_graph(door):
    """Must catch: a penalty on a gradient that has lost its graph, or that is each rank's own."""
    beside = Beside(door)
    try:
        loss_of(beside.model(beside.inputs())).backward(create_graph=True)
        beside.optimizer.step()
    finally:
        for parameter in beside.net.parameters():
            parameter.grad = None  # it refers to the parameter


def stepped_in_between(door):
    """Autograd objects, as on a plain model: what it kept is not what backward computes with.

    Must catch: increment_version left out of a step; save_for_backward left out of a gathering."""
    beside = Beside(door)
    beside.backward()
    loss = loss_of(beside.model(beside.inputs()).tanh())
    beside.optimizer.step()
    loss.backward()


def loaded_between(door, rule=SGD, dtype=torch.float64, **settings):
    """Weights that are loaded after a step stay in a step of no length.

    Must catch: copies on the host or in fp32 of before that are put into the model again."""
    net = linears(4, 3).to(dtype)
    state = {name: torch.full_like(value, 0.5) for name, value in net.state_dict().items()}
    model, optimizer = door.shard(net, rule, lr=1.0, **settings)
    for rate in (1.0, 0.0):
        optimizer.zero_grad()
        model(torch.ones(1, 4, dtype=dtype)).sum().backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        if rate:
            net.load_state_dict(state)
    return RIGHT if all((p == 0.5).all() for p in door.whole(net).values()) else "other weights"


def with_a_scheduler(door):
    """It changes learning rate and momentum, also once a state was loaded. Must catch: param_groups
    that are copies of those of the optimizer inside, or still those from before the load."""
    beside = Beside(door, momentum=0.9)
    optimizers = beside.optimizer, beside.plain_optimizer
    made = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=5) for o in optimizers]
    for _ in range(3):
        beside.steps(1)
        beside.optimizer.load_state_dict(beside.optimizer.state_dict())
        for scheduler in made:
            scheduler.step()
    return beside.verdict()


def given_a_gradient(door):
    """After backward. Must catch: a refusal of what is right; a gradient that is ignored in this
    step, and added in the next."""
    beside = Beside(door)
    beside.backward()
    beside.net[0].weight.grad = torch.full_like(beside.net[0].weight, 1.0 + dist.get_rank())
    beside.plain[0].weight.grad = torch.full_like(beside.plain[0].weight, 1.5)
    beside.step()
    return beside.verdict()


def of_any_strides(door):
    """Buffers and frozen parameters. Must catch: the memory behind a strided tensor sent instead of
    its elements; an expanded tensor written past its end; a dtype that no backend sums; each rank's
    own values."""
    torch.manual_seed(1 + dist.get_rank())
    net, me = linears(3, 3), dist.get_rank()
    net[0].bias = nn.Parameter(torch.randn(3, 2)[:, 0], requires_grad=False)
    kinds = dict(
        columns=torch.randn(4, 4)[:, :2],
        expanded=torch.randn(1).expand(200_000),
        transposed=torch.randn(2, 3).T,
        number=torch.tensor([5 + me]),
        flags=torch.tensor([True, bool(me)]),
        uint16=torch.full((3,), 7 + me, dtype=torch.uint16),
        float8=torch.full((3,), 2.0 + 2 * me).to(torch.float8_e4m3fn),
        complex=torch.full((2,), 1j + me),
        empty=torch.zeros(0),
    )
    for name, value in kinds.items():
        net.register_buffer(name, value)

    def values(parameters):
        held = {**parameters, **dict(net.named_buffers())}
        return {name: t.detach()[:9].to(torch.complex128).tolist() for name, t in held.items()}

    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, values(dict(net.named_parameters())))
    door.shard(net, SGD, lr=0.1)
    wrong = [name for name, value in values(door.whole(net)).items() if value != every[0][name]]
    return f"others of {wrong}" if wrong else RIGHT


def read_after_a_step(door, read):
    """A reader's use of parameters between a step and the next forward.

    Must catch: values read before they have come; a copy that is on its way for good."""
    beside = Beside(door, partial(linears, 4, 6, 2), momentum=0.9)
    for _ in range(2):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        beside.backward()
        beside.step()
        found, want = (read(net) for net in beside.nets)
        if far(found.detach(), want.detach()) > CLOSE[torch.float64]:
            return f"{found}"
    return beside.steps()


def in_a_copy(net):
    return utils.parameters_to_vector(copy.deepcopy(net).state_dict().values())


def in_a_file(net):
    return utils.parameters_to_vector(loaded(net).state_dict().values())


def evaluated(net):
    with torch.inference_mode():
        return net(torch.ones(3, 4))


def halved_by_hand(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)
    return net[1].bias


READS = (
    in_a_copy,
    in_a_file,
    evaluated,
    halved_by_hand,
    lambda net: utils.parameters_to_vector(net.parameters()),
    lambda net: torch.cat([value.flatten() for value in net.state_dict().values()]),
    lambda net: utils.get_total_norm(list(net.parameters())),
    lambda net: torch.tensor([p.data[0].sum() for p in net.parameters()]),
    lambda net: torch.func.functional_call(net, dict(net.named_parameters()), (torch.ones(2, 4),)),
    lambda net: net.to(torch.float64)[0].weight,
)


def microbatches(door, apart):
    """Three in a step, the first two within no_sync() or not.

    Must catch: gradients of no_sync() that are lost, or averaged twice."""
    beside = Beside(door, momentum=0.9)
    for _ in range(2):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        for number in range(3):
            with beside.optimizer.no_sync() if apart and number < 2 else nullcontext():
                beside.backward()
        beside.step()
    return beside.verdict()


def nothing_but_no_sync(door):
    """Must catch: a step with gradients of no rank."""
    beside = Beside(door)
    with beside.optimizer.no_sync():
        beside.backward()
    beside.step()
    return beside.verdict()


# --- rows: clipping and scaling -------------------------------------------------------------------


def clipped(door, rule=SGD, dtype=torch.float64, **settings):
    """This book's clipping, and a state that is loaded. Must catch: parameters not copied back from
    the host; the host's gradient from the step before; clipping that sees no gradient; the local
    norm; a gradient of 16 bits given to a parameter of 32."""
    beside = Beside(door, before=lambda net: net.to(dtype), rule=rule, **settings)
    for _ in range(3):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        beside.backward()
        norms = [clip_gradients(o, 0.1) for o in (beside.optimizer, beside.plain_optimizer)]
        beside.step()
        beside.optimizer.load_state_dict(beside.optimizer.state_dict())
    return beside.verdict() if far(*norms) <= CLOSE[dtype] else f"norms of {norms}"


def clipped_by_torch(door, norm_type=2.0):
    """PyTorch's own norm, and what is left of the gradients.

    Must catch: a norm of each rank's own; clipping that finds no gradients and returns 0."""
    beside = Beside(door)
    beside.backward()
    for most in (0.1, 1e9):  # the norm is above it, then below
        norms = [utils.clip_grad_norm_(net.parameters(), most, norm_type) for net in beside.nets]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        if far(*norms) > 1e-6:  # PyTorch divides by the norm and 1e-6
            return f"norms of {norms}"
    beside.step()
    return beside.verdict()


def clipped_by_value(door):
    """Must catch: each rank's own gradients clipped before they are averaged; none clipped, because
    they have been taken."""
    beside = Beside(door)
    beside.backward()
    gradients = [p.grad.abs() for p in beside.plain.parameters()]
    most = torch.cat([g.flatten() for g in gradients]).median().item()
    for net in beside.nets:
        utils.clip_grad_value_(net.parameters(), most)
    beside.step()
    return beside.verdict()


def infinite_on_one_rank(door, unscaled_first, dtype=None, **settings):
    """In the first and the third step. Must catch: a rank that steps alone; scales that differ from
    now on; gradients left scaled."""
    make = partial(nn.Linear, 4, 1, bias=False)
    beside = Beside(door, make, before=lambda net: net.to(dtype), **settings)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    optimizers = beside.optimizer, beside.plain_optimizer
    for number in range(4):
        x = beside.inputs()
        if number in (0, 2):  # the first column of the weight, or the last
            x[number, 3 if number else 0] = torch.inf
        beside.door.backward(beside.model, x, lambda y: scalers[0].scale(y.mean()))
        scalers[1].scale(beside.plain(x).mean()).backward()
        norms = []
        for scaler, optimizer in zip(scalers, optimizers):
            if unscaled_first:
                scaler.unscale_(optimizer)
                norms.append(clip_gradients(optimizer, 1e9))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if number % 2 and norms and far(*norms) > CLOSE[dtype or torch.float64]:
            return f"norms of {norms}"
    scales = [scaler.get_scale() for scaler in scalers]
    return beside.verdict() if scales == [256.0] * 2 else f"scales of {scales}"


# --- rows: optimizers -----------------------------------------------------------------------------


class ByNorm(torch.optim.Optimizer):
    """LARS in a line: a step as long as the tensor."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def change(self, p, lr):
        p.sub_(p.grad * (lr * p.norm() / p.grad.norm()))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, group["lr"])


class ByNormLater(ByNorm):
    """Its second step has the length of the first gradient."""

    def change(self, p, lr):
        before = self.state[p].setdefault("first", p.grad.clone())
        p.sub_(p.grad, alpha=lr if before.equal(p.grad) else (lr * before.norm()).item())


class DecaysMatrices(ByNorm):
    def change(self, p, lr):
        p.mul_(0.9 if p.dim() > 1 else 1).sub_(p.grad, alpha=lr)


class OfSigns(ByNorm):
    """Somebody's own, which looks at each element alone."""

    def change(self, p, lr):
        p.sub_(p.grad.sign(), alpha=lr)


class MyAdafactor(torch.optim.Adafactor):
    pass


class MyAdamW(torch.optim.AdamW):
    pass


def by_rule(door, rule, lr=0.1, bias=True, **settings):
    """Must catch: optimizers refused by a list of names, which a subclass passes; one step, after
    which momentum is not yet seen; a learning rate of 0; a refusal of what is right."""
    return Beside(door, partial(linears, 4, 7, 3, bias=bias), rule, lr=lr, **settings).steps()
