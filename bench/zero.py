"""ZeRO against PyTorch's own: stage 1 and ZeroRedundancyOptimizer, stage 3 and fully_shard, in
turns: step time, peak bytes, bytes."""

from statistics import median, quantiles

from bench.data_parallel import SHAPES, build, step_of
from bench.report import Result
from bench.turns import PAIRS, in_turns

STAGE_1 = 1.00  # of PyTorch's time at most
# the same; 0.85 is what gloo's reduce-scatter, an all-reduce underneath, should be good for
STAGE_3 = 1.00
PEAK = 1.02  # of PyTorch's bytes at most
READABLE = "ours, readable"
TUNED = dict(gradient_as_bucket_view=True, static_graph=True)


def measure_zero() -> list[Result]:
    from shardlab.ranks import ranks

    results = []
    for count in (2, 4):
        with ranks(count, device="cpu", announce=False) as world:
            for name, shape in SHAPES.items():
                for stage, most in ((1, STAGE_1), (3, STAGE_3)):
                    found = world.run(race, stage, shape)
                    results += beside_torch(
                        f"stage {stage}, {count} ranks, {name}", most, *found[0]
                    )
    return results


def beside_torch(
    what: str,
    most: float,
    times: dict[str, list[float]],
    peaks: dict[str, int],
    sent: dict[str, int],
    ring: int,
) -> list[Result]:
    """`times` in turns, of rank 0, as are bytes at the peak, bytes sent (of PyTorch's, which do not
    pass by here: the messages' logical bytes), and what the ring formula says. The faster of
    PyTorch's ways that keep no more is the peer."""
    peer = min(
        (name for name in times if name.startswith("torch") and "kept" not in name),
        key=lambda name: median(times[name]),
    )
    low, *_, high = quantiles([a / b for a, b in zip(times["ours again"], times["ours"])], n=20)
    note = (
        f"{PAIRS} interleaved turns; {peer} {1000 * median(times[peer]):.0f} ms; A/A {low:.2f} to"
        f" {high:.2f}"
    )
    case, held = (
        dict(what=what, peer=peer),
        dict(identical_low=round(low, 3), identical_high=round(high, 3)),
    )
    readable = dict(case, what=f"{what}, readable")
    rows = {
        "ours": (most, note, "zero_race.step", case | held),
        READABLE: (None, note, "zero_race.step", readable | held),
    }
    results = []
    for name in ("ours", *sorted(set(times) - {"ours", "ours again", peer})):
        ratio = median(a / b for a, b in zip(times[name], times[peer]))
        results.append(
            Result(
                "zero",
                f"{what}: step, {name} / {peer}",
                round(ratio, 3),
                "x",
                *rows.get(name, ()),
            )
        )
    least = min(peaks[name] for name in peaks if name.startswith("torch"))
    return [
        *results,
        Result(
            "zero",
            f"{what}: peak bytes, ours / PyTorch's least",
            round(peaks["ours"] / least, 4),
            "x",
            PEAK,
            "; ".join(f"{name} {nbytes:,}" for name, nbytes in peaks.items()),
            "zero_race.peak",
            case,
        ),
        Result(
            "zero",
            f"{what}: bytes sent, ours / the ring formula",
            round(sent["ours"] / ring, 6),
            "x",
            1.0,
            "; ".join(f"{name} {nbytes:,}" for name, nbytes in sent.items()),
            "zero_race.sent",
            case,
        ),
    ]


# --- on a rank ------------------------------------------------------------------------------------


def race(stage: int, shape: dict):
    ways = ways_of_stage_1() if stage == 1 else ways_of_stage_3()
    weights = {name: weighed(wrap, shape) for name, wrap in ways.items()}
    works = {name: step_of(*wrap(build(shape)), shape) for name, wrap in ways.items()}
    times = in_turns({**works, "ours again": works["ours"]})
    return (
        times,
        {name: w[0] for name, w in weights.items()},
        {name: w[1] for name, w in weights.items()},
        weights["ours"][2],
    )


def ours(stage: int) -> dict:
    """The ring that is fast, and the one that is printed on the page."""
    import torch

    from shardlab import zero
    from shardlab.zero import faster, flat

    def way(collectives):
        return lambda net: zero.shard(
            net, torch.optim.AdamW, stage=stage, collectives=collectives, lr=1e-3
        )

    return {"ours": way(faster.Ring()), READABLE: way(flat.Ring())}


def ways_of_stage_1():
    """Each: a network to (what is called, its optimizer)."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    def theirs(of_data_parallel, **of_optimizer):
        return lambda net: (
            DistributedDataParallel(net, **of_data_parallel),
            ZeroRedundancyOptimizer(
                net.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, **of_optimizer
            ),
        )

    return {
        **ours(1),
        "torch": theirs({}),
        "torch tuned": theirs(TUNED, parameters_as_bucket_view=True),
        "stage 2": ours(2)["ours"],
    }


def ways_of_stage_3():
    import torch
    from torch.distributed import fsdp

    def theirs(**options):
        def wrap(net):
            # its embedding and head share a weight: they are the root's
            for unit in (*net.blocks, net):
                fsdp.fully_shard(unit, **options)
            return net, torch.optim.AdamW(net.parameters(), lr=1e-3)

        return wrap

    return {
        **ours(3),
        "torch": theirs(),
        "torch, root freed": theirs(reshard_after_forward=True),
        "torch, all kept after forward": theirs(reshard_after_forward=False),
    }


def weighed(wrap, shape: dict) -> tuple[int, int, int]:
    """(bytes at the peak of the third step, bytes sent in it, bytes that the ring formula gives for
    our flat tensors)."""
    import torch
    import torch.distributed as dist

    from shardlab.formulas import zero_sent_bytes
    from shardlab.gpt import next_token_loss
    from shardlab.measure.communication import CommunicationLog
    from shardlab.measure.ledger import Ledger
    from shardlab.zero.stage3 import sharded_units

    net, tokens = build(shape), torch.zeros(4, shape["max_sequence"], dtype=torch.long)
    with Ledger(net) as ledger:
        model, optimizer = wrap(net)
        for _ in range(3):
            before = len(ledger.timeline)
            with CommunicationLog() as log:
                next_token_loss(model(tokens), tokens).backward()
                optimizer.step()
            optimizer.zero_grad()
    totals = log.totals()
    sent = (
        totals["send"].nbytes
        if "send" in totals
        else sum(total.nbytes for total in totals.values())
    )
    flats = [bucket.flat.numel() for bucket in getattr(optimizer, "buckets", [])]
    flats += [flat.full.numel() for unit in sharded_units(net) for flat in unit.sharded_unit.flats]
    ring = sum(
        zero_sent_bytes(
            zero_stage=1 if hasattr(optimizer, "buckets") else 3,
            parameters=size,
            accumulation_steps=1,
            rank=dist.get_rank(),
            data_parallel=dist.get_world_size(),
            parameter_element_bytes=4,
            gradient_element_bytes=4,
        )
        for size in flats
    )
    return max(moment.bytes.total for moment in ledger.timeline[before:]), sent, ring
