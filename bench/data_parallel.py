"""Our DistributedDataParallel against PyTorch's: step times in turns, peak bytes, bytes sent; and
what overlap hides on a slow link."""

from statistics import median, quantiles

from bench.report import Result
from bench.turns import PAIRS, in_turns

RATIO = 1.05  # of PyTorch's time at most, the faster of its defaults and its tuned options
HIDDEN = 0.6  # of communication, at least
MEGABITS, BUCKET_BYTES = 1000, 2_000_000
SHAPES = {
    "5.3M parameters": dict(layers=4, hidden=256, heads=4, vocabulary=8192, max_sequence=64),
    "27.3M parameters": dict(layers=8, hidden=512, heads=8, vocabulary=4096, max_sequence=64),
}
TUNED = dict(gradient_as_bucket_view=True, static_graph=True)
SMALL_BUCKETS = 5  # MiB: PyTorch's defaults are 1 for the first bucket and 25 for the others
ON_THE_SLOW_LINK = dict(layers=6, hidden=256, heads=4, vocabulary=1000, max_sequence=128)


def measure_data_parallel() -> list[Result]:
    from shardlab.ranks import ranks
    from shardlab.ranks.links import LinksUnavailable, two_hosts

    results = []
    for count in (2, 4):
        with ranks(count, device="cpu", announce=False) as world:
            for name, shape in SHAPES.items():
                results += beside_torch(f"{count} ranks, {name}", *world.run(race, shape)[0])
    try:
        with (
            two_hosts(MEGABITS) as hosts,
            ranks(2, device="cpu", hosts=hosts, announce=False) as world,
        ):
            results += hidden(world.run(overlap, ON_THE_SLOW_LINK)[0])
    except LinksUnavailable as error:
        print(f"bench:  {error}")
    return results


def beside_torch(
    what: str, times: dict[str, list[float]], bytes_of: dict[str, tuple[int, int]]
) -> list[Result]:
    """`times` by name in turns; `bytes_of` (at the peak, sent in a step). The faster of our two
    bucket sizes meets the faster of their options."""
    ours, theirs = (
        min(
            (name for name in times if name.startswith(whose) and "again" not in name),
            key=lambda name: median(times[name]),
        )
        for whose in ("ours", "torch")
    )
    low, *_, high = quantiles([a / b for a, b in zip(times["ours again"], times["ours"])], n=20)
    note = (
        f"{PAIRS} interleaved turns; {theirs} {1000 * median(times[theirs]):.0f} ms; A/A {low:.2f}"
        f" to {high:.2f}"
    )
    case, held = (
        dict(what=what, peer=theirs),
        dict(identical_low=round(low, 3), identical_high=round(high, 3)),
    )
    results = []
    for name in (ours, *sorted(set(times) - {ours, theirs, "ours again"})):
        ratio = median(a / b for a, b in zip(times[name], times[theirs]))
        results.append(
            Result(
                "data parallel",
                f"{what}: step, {name} / PyTorch's faster",
                round(ratio, 3),
                "x",
                *((RATIO, note, "data_parallel_race.step", case | held) if name == ours else ()),
            )
        )
    for place, of, row in (
        (0, "peak bytes", "peak"),
        (1, "bytes brought to all-reduces", "reduced"),
    ):
        results.append(
            Result(
                "data parallel",
                f"{what}: {of}, {ours} / {theirs}",
                round(bytes_of[ours][place] / bytes_of[theirs][place], 4),
                "x",
                None,
                f"{bytes_of[ours][place]:,} and {bytes_of[theirs][place]:,}",
                f"data_parallel_race.{row}",
                case,
            )
        )
    return results


def hidden(times: dict[str, list[float]]) -> list[Result]:
    with_overlap, without, alone = (
        median(times[name]) for name in ("overlap", "no overlap", "no communication")
    )
    share = (without - with_overlap) / (without - alone)
    low, *_, high = quantiles(
        [a / b for a, b in zip(times["overlap again"], times["overlap"])], n=20
    )
    note = (
        f"{PAIRS} interleaved turns: {1000 * alone:.0f} ms without communication,"
        f" {1000 * without:.0f} after backward, {1000 * with_overlap:.0f} with overlap; A/A"
        f" {low:.2f} to {high:.2f}"
    )
    what = (
        f"2 ranks, {MEGABITS} Mbit/s between them, buckets of {BUCKET_BYTES:,} bytes: communication"
        " that is not hidden"
    )
    return [
        Result(
            "data parallel",
            what,
            round(1 - share, 3),
            "",
            round(1 - HIDDEN, 3),
            note,
            "data_parallel_race.not_hidden",
            dict(what="2 ranks", megabits_per_second=MEGABITS, bucket_bytes=BUCKET_BYTES),
        )
    ]


# --- on a rank ------------------------------------------------------------------------------------


def race(shape: dict) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    from torch.nn.parallel import DistributedDataParallel as Torch

    from shardlab.data_parallel import DistributedDataParallel as Ours

    ways = {
        "ours": Ours,
        "torch": Torch,
        "torch tuned": lambda net: Torch(net, **TUNED),
        "torch tuned, small buckets": lambda net: Torch(net, bucket_cap_mb=SMALL_BUCKETS, **TUNED),
        "ours, small buckets": lambda net: Ours(net, bucket_bytes=SMALL_BUCKETS << 20),
    }
    bytes_of = {name: weighed(wrap, shape) for name, wrap in ways.items()}
    works = {name: sgd_step(wrap(build(shape)), shape) for name, wrap in ways.items()}
    return in_turns({**works, "ours again": works["ours"]}), bytes_of


def overlap(shape: dict) -> dict[str, list[float]]:
    from shardlab.data_parallel import DistributedDataParallel

    with_overlap = sgd_step(
        DistributedDataParallel(build(shape), BUCKET_BYTES), shape, microbatch=8
    )
    without = sgd_step(
        DistributedDataParallel(build(shape), BUCKET_BYTES, overlap=False), shape, microbatch=8
    )
    model = DistributedDataParallel(build(shape))
    alone = sgd_step(model, shape, microbatch=8)

    def no_communication():
        with model.no_sync():
            alone()

    return in_turns(
        {
            "overlap": with_overlap,
            "no overlap": without,
            "no communication": no_communication,
            "overlap again": with_overlap,
        }
    )


def build(shape: dict):
    import torch

    from shardlab.gpt import GPT, GPTConfig

    torch.manual_seed(0)
    return GPT(GPTConfig(**shape))


def sgd_step(model, shape: dict, microbatch: int = 4):
    import torch

    return step_of(model, torch.optim.SGD(model.parameters(), lr=1e-3), shape, microbatch)


def step_of(model, optimizer, shape: dict, microbatch: int = 4):
    """One training step, to be called."""
    import torch

    from shardlab.gpt import next_token_loss

    tokens = torch.randint(shape["vocabulary"], (microbatch, shape["max_sequence"]))

    def step():
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def weighed(wrap, shape: dict) -> tuple[int, int]:
    """(bytes at the peak of the third step, bytes it brought to all-reduces). The model is wrapped
    under the ledger, which then knows what the wrapping keeps."""
    import torch

    from shardlab.gpt import next_token_loss
    from shardlab.measure.communication import CommunicationLog
    from shardlab.measure.ledger import Ledger

    net, tokens = build(shape), torch.zeros(4, shape["max_sequence"], dtype=torch.long)
    with Ledger(net) as ledger:
        model = wrap(net)
        for _ in range(3):
            before = len(ledger.timeline)
            with CommunicationLog() as log:
                next_token_loss(model(tokens), tokens).backward()
            net.zero_grad()
    sent = sum(message.nbytes for message in log.messages if message.operation == "all_reduce")
    return max(moment.bytes.total for moment in ledger.timeline[before:]), sent
