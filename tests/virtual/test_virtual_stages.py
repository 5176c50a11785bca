"""The techniques in virtual time beside the closed forms of the chapters. Units are equal products,
launches are free and memory is fast, as in the formulas."""

from types import SimpleNamespace

import pytest
import torch
from night import at_night
from torch import nn

from coursekit.formulas import evaluate
from ranklab.virtual import GPU, Links, VirtualGPUs
from shardlab import zero
from shardlab.common.backward import when_backward_ends
from shardlab.mixed_precision.hardened.master_weights import MasterWeights
from shardlab.recompute.host_copies import HELD
from shardlab.recompute.offload import offload_activations
from shardlab.tensor_parallel import apply_tensor_parallel, overlapped, sequence_parallel
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows
from shardlab.zero.hardened.flat import Native
from shardlab.zero.hardened.offload import Landing

UNITS, HIDDEN, RANKS = 5, 1024, 8
UNIT_BYTES = 4 * HIDDEN**2
FORWARD = 2e-3  # seconds of a unit
ROWS = round(FORWARD * 1e12 / (2 * HIDDEN**2))
LINKS = {"a fast link": 0.4, "a slow link": 1.7}  # seconds of a unit's gather over its forward's


class Scaled(nn.Linear):
    """Has a parameter that cannot be in one bucket with the weight."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.scale = nn.Parameter(torch.ones(RANKS, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x * self.scale[0].to(x.dtype))


def step_of(stage, link, unit=nn.Linear, **options):
    rate = (RANKS - 1) / RANKS * UNIT_BYTES / (LINKS[link] * FORWARD)
    gpu = GPU({torch.float32: 1e12}, 1e18, Links(rate, node_latency_seconds=0), launch_seconds=0)
    with VirtualGPUs(RANKS, gpu) as own:
        model = nn.Sequential(*[unit(HIDDEN, HIDDEN, bias=False) for _ in range(UNITS)])
        if stage < 3:
            options["bucket_bytes"] = UNIT_BYTES
        model, optimizer = zero.shard(model, torch.optim.SGD, stage=stage, lr=0.1, **options)
        x = torch.ones(ROWS, HIDDEN, requires_grad=True)

        def train():  # from update to update, so that messages may travel under the next forward
            optimizer.step()
            optimizer.zero_grad()
            model(x).mean().backward()

        model(x).mean().backward()
        train()  # in which stage 3 learns the order of its units
        with own.step() as step:
            train()
    return step


def exposed_by_formula(stage, link, ahead, early):
    given = dict(
        accumulation_steps=1,
        zero_flat_tensors=UNITS,
        unit_gather_seconds=LINKS[link] * FORWARD,
        unit_reduce_seconds=LINKS[link] * FORWARD * (1 if stage else 2),
        unit_forward_seconds=FORWARD,
        unit_backward_seconds=2 * FORWARD,
        prefetch_units=ahead,
        reduce_early=early,
    )
    return evaluate(["zero_exposed_seconds"], zero_stage=stage, allow_unused=True, **given)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "stage, ahead, early",
    [(0, 1, 1), (1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 1), (3, 0, 0), (3, 1, 1)],
    ids=lambda value: str(value),
)
def test_a_stage_exposes_what_its_closed_form_says(stage, ahead, early, link):
    """Must catch: a message that starts when its wait comes; gradients waited for before the next
    unit computes; parameters asked for when they are needed, or all waited for by the first layer
    or by zero_grad(); a forward that asks for nothing; three units whole at a time."""
    step = step_of(stage, link, **(dict(prefetch=True) if stage and ahead else {}))
    (expected,) = exposed_by_formula(stage, link, ahead, early).values()
    assert step.computing_seconds == pytest.approx(3 * UNITS * FORWARD, rel=0.001)
    assert step.exposed_seconds == pytest.approx(expected, rel=0.001)
    assert step.seconds == pytest.approx(step.computing_seconds + expected, rel=0.001)
    assert step.host_waits == 0
    if stage == 3:
        gathers = [span.start for span in step.spans if span.name == "all_gather"]
        products = [span.end for span in step.spans if span.name == "mm"]
        ends = products[:UNITS] + products[UNITS + 1 :: 2]
        assert len(gathers) == len(ends) == 2 * UNITS
        assert all(start >= end for start, end in zip(gathers[2:], ends))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", [1, 2])
def test_a_bucket_of_small_parameters_of_all_layers_holds_up_none(stage):
    """Must catch: a bucket that is complete last and leaves first; one that the first layer needs
    and that comes last."""
    steps = [
        step_of(stage, "a fast link", unit, prefetch=True, fused=True)
        for unit in (nn.Linear, Scaled)
    ]
    without, exposed = (step.exposed_seconds for step in steps)
    assert exposed == pytest.approx(without, rel=0.01)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", [torch.optim.SGD, MasterWeights])
@pytest.mark.parametrize(
    "copy, message", [(0.3, 1.7), *at_night((0.3, 0.4), (1.1, 0.4), (1.1, 1.7))]
)
def test_an_offloaded_optimizer_exposes_what_its_closed_form_says(stage, kind, copy, message):
    """Must catch: gradients that leave for the host after backward, or before they are means
    (OverlappedCopies.copy waits for no stream); parameters gathered before they have come back, or
    all after the last; a host that reads what has not come, or waits more than once."""
    share = UNIT_BYTES // 2 // RANKS
    rate = (RANKS - 1) * share / (message * FORWARD)
    gpu = GPU(
        {torch.bfloat16: 1e12},
        1e18,
        Links(rate, node_latency_seconds=0),
        launch_seconds=0,
        host_bytes_per_second=share / (copy * FORWARD),
    )
    with VirtualGPUs(RANKS, gpu) as own:
        units = (nn.Linear(HIDDEN, HIDDEN, False, dtype=torch.bfloat16) for _ in range(UNITS))
        of = dict(of=torch.optim.SGD) if kind is MasterWeights else {}
        model, optimizer = zero.shard(
            nn.Sequential(*units), kind, stage=stage, offload=True, bucket_bytes=1, lr=0.1, **of
        )
        x = torch.ones(ROWS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        with own.step() as step:
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if stage == 1:
        out = max(message + UNITS * copy, UNITS * message + copy)
    else:  # as backward ends, the mean before the last one leaves, and the last one is made
        out = max(message, copy) + copy
    back = max(message + UNITS * copy, UNITS * message + copy)
    assert step.seconds == pytest.approx((3 * UNITS + out + back) * FORWARD, rel=0.001)
    assert step.computing_seconds == pytest.approx(3 * UNITS * FORWARD, rel=0.001)
    assert step.host_waits == 1


def test_gradients_that_land_at_the_end_of_backward():
    """Must catch: a landing that keeps the end of its last arrival (`end` is not reset); a copy
    that leaves before the mean is made, or whose memory goes before it has left."""
    gpu = GPU({torch.float32: 1e12}, 1e18, launch_seconds=0, host_bytes_per_second=1e9)
    with VirtualGPUs(1, gpu) as own:
        landing, weight = Landing(), torch.ones(HIDDEN, HIDDEN)
        flat = SimpleNamespace(shards=[nn.Parameter(weight.clone())], parts=lambda host: [host])

        def bring(*_):
            landing.bring(weight @ weight, flat)

        def passes(gradient):
            for _ in range(3):
                bring()
            when_backward_ends(bring)

        x = torch.ones(1, requires_grad=True)
        y = x * 2
        y.register_hook(passes)
        with own.step() as step:
            y.sum().backward()
    assert flat.shards[0].grad is not None and not landing.coming
    made = [span for span in step.spans if span.name == "mm"]
    left = [span for span in step.spans if span.name == "copy to the host"]
    assert len(made) == len(left) == 4 and step.host_waits == 2
    assert all(copy.start >= mean.end for copy, mean in zip(left, made))
    assert all(mean.start >= copy.end for copy, mean in zip(left, made[2:]))


def peak_of(stage, prefetch, hidden):
    """Bytes at the fullest point of a step, and how many parameters are on their way after it."""
    with VirtualGPUs(RANKS, GPU({torch.float32: 1e12}, 1e12, Links(1e9))) as gpu:
        model = nn.Sequential(*[nn.Linear(hidden, hidden) for _ in range(UNITS)])
        options = dict(stage=stage, bucket_bytes=12 * hidden**2, prefetch=prefetch, lr=0.1)
        model, optimizer = zero.shard(model, torch.optim.AdamW, **options)
        for _ in range(3):
            gpu.memory.peak = 0
            model(torch.ones(8, hidden)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return gpu.memory.peak, sum("arrival" in vars(p) for p in model.parameters())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("hidden", [64, 61])
@pytest.mark.parametrize("stage", [1, 2])
def test_messages_under_way_take_no_memory(stage, hidden):
    """Must catch: a copy of the parameters that lives until they have come; whole gradients of
    stage 1 that live until the update."""
    (without, none), (peak, coming) = (peak_of(stage, ahead, hidden) for ahead in (False, True))
    assert (none, coming) == (0, 2 * UNITS)
    assert peak < without if stage == 1 else peak == without


@pytest.mark.parametrize("bias, passes", [(False, 0), (True, 2)], ids=["alone", "with its bias"])
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_a_gradient_is_copied_once_at_most(bias, passes, transposed):
    """Mutations: a copy of a lone gradient; transposed gradients that become contiguous before they
    are copied into the bucket; a gradient that is copied, and multiplied afterwards."""
    gpu = GPU({torch.float32: 1e12}, 1e9, Links(1e9), launch_seconds=0)
    with VirtualGPUs(RANKS, gpu) as own:
        gradients = [torch.ones(HIDDEN, HIDDEN).t() if transposed else torch.ones(HIDDEN, HIDDEN)]
        gradients += [torch.ones(HIDDEN)] * bias
        nbytes = sum(gradient.nbytes for gradient in gradients)
        with own.step() as step:
            Native().reduce_scatter(gradients, share=1 / RANKS)
    passes = 2 if transposed else passes
    assert step.computing_seconds == pytest.approx(passes * nbytes / 1e9, rel=1e-6)


@pytest.mark.parametrize(
    "dtype, passes", [(torch.float32, 0), (torch.bfloat16, 2 / 24), (torch.float16, 2)]
)
def test_a_mean_of_24_multiplies_as_little_as_it_may(dtype, passes):
    """NCCL's own mean is exact in fp32 alone. Must catch: gradients in bf16 that are copied and
    multiplied; a chunk that is not."""
    gpu = GPU({torch.float32: 1e12}, 1e9, Links(1e9, 1e9), launch_seconds=0)
    with VirtualGPUs(24, gpu) as own:
        gradients = [torch.ones(24 * HIDDEN, dtype=dtype)]
        nbytes = gradients[0].nbytes
        with own.step() as step:
            Native().reduce_scatter(gradients, share=1 / 24)
    assert step.computing_seconds == pytest.approx(passes * nbytes / 1e9, rel=1e-6)


TOKENS = 1024  # which all numbers of ranks and chunks divide
PRODUCT = 2 * HIDDEN**2 * TOKENS / 1e12  # seconds


def step_of_a_pair(link, chunks, sequence):
    """Columns and rows that take PRODUCT each. A sum of the outcome takes `link` times as long."""
    rate = 2 * (RANKS - 1) / RANKS * 4 * TOKENS * HIDDEN / (link * PRODUCT)
    gpu = GPU({torch.float32: 1e12}, 1e18, Links(rate, node_latency_seconds=0), launch_seconds=0)
    with VirtualGPUs(RANKS, gpu) as own:
        sizes = (HIDDEN, RANKS * HIDDEN), (RANKS * HIDDEN, HIDDEN)
        pair = nn.Sequential(nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes)))
        plan = {"0": Around(), "0.0": Columns(HIDDEN), "0.1": Rows(HIDDEN)}
        plan = sequence_parallel(plan) if sequence else plan
        apply_tensor_parallel(pair, overlapped(plan, chunks) if chunks else plan)
        tokens = TOKENS // RANKS if sequence else TOKENS
        x = torch.ones(1, tokens, HIDDEN, requires_grad=True)
        with own.step() as step:
            pair(x).mean().backward()
    return step


def exposed_of_a_pair(link, chunks, sequence):
    """In units of PRODUCT."""
    k, message = chunks or 1, link / 2 if sequence else link
    forward = max(message / k, message - (k - 1) / k)
    if not sequence:
        return forward + max(0, link - (2 if chunks else 0))
    if not chunks:
        return 5 * message
    rows_end = max(message / k + 2, message + 2 / k)  # dx and dW
    again = max(0, 2 * message - rows_end)
    return message + forward + rows_end - 2 + again + max(0, message - 1)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("chunks", [0, 1, 4])
@pytest.mark.parametrize("link", [0.4, 1.7, 4.6])
def test_a_pair_exposes_what_its_closed_form_says(link, chunks, sequence):
    """Must catch: a chunk that is summed when all are multiplied; weight gradients made before the
    message leaves; tokens that are gathered again when they are needed; a host that waits."""
    step = step_of_a_pair(link, chunks, sequence)
    expected = PRODUCT * exposed_of_a_pair(link, chunks, sequence)
    assert step.computing_seconds == pytest.approx(6 * PRODUCT, rel=0.001)
    assert step.exposed_seconds == pytest.approx(expected, rel=0.001)
    assert step.host_waits == 0


LAYERS = 12


@pytest.mark.parametrize("copy", [0.9, 3.0])
def test_offloaded_activations_expose_what_the_link_cannot_carry(copy):
    """Must catch: a storage dropped before its copy has ended, so that kernels write over it; an
    input copied back that is still there; one that is used before it has come; a copy on the stream
    that computes; a host that waits."""
    rate = 4 * TOKENS * HIDDEN / (copy * PRODUCT)
    gpu = GPU({torch.float32: 1e12}, 1e18, launch_seconds=0, host_bytes_per_second=rate)
    with VirtualGPUs(1, gpu) as own:
        model = nn.Sequential(*[nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(LAYERS)])
        x = torch.ones(TOKENS, HIDDEN, requires_grad=True)
        with own.step() as step:
            with offload_activations(0):
                y = model(x)
            y.mean().backward()
    spans = [(s.name, s.start, s.end) for s in step.spans if s.name == "mm" or "copy" in s.name]
    left = [end for name, _, end in spans if name == "copy to the host"]
    forward = [start for name, start, _ in spans if name == "mm"][:LAYERS]
    assert all(begins >= ended for begins, ended in zip(forward[HELD:], left))
    assert [name for name, *_ in spans].count("copy from the host") == LAYERS - HELD
    expected = 3 * LAYERS
    if copy > 1:
        expected = copy * (2 * LAYERS - HELD) + 2 * HELD
    assert step.seconds == pytest.approx(expected * PRODUCT, rel=0.001)
    assert step.computing_seconds == pytest.approx(3 * LAYERS * PRODUCT, rel=0.001)
    assert step.host_waits == 0
