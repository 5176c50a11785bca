"""Still pictures of the chapter on ZeRO: what a rank keeps in each stage, a microbatch of stage 3
with the memory beneath it, and two ways to cut a unit."""

from itertools import accumulate
from math import prod

from coursekit.formulas import evaluate, quantities
from coursekit.formulas.events import operations, play, quantities_of
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said
from coursekit.topics.zero.timeline import MICROBATCH

FIVE = dict(  # the model that the chapter opens with
    parameters=5_000_000_000,
    data_parallel=16,
    rank=0,
    recipe="bf16 + fp32 master",
    gpu="H100 SXM 80GB",
    accumulation_steps=1,
)
KINDS = {
    "zero_parameter_bytes": ("parameters", "parameters", "white"),
    "zero_gradient_bytes": ("gradients", "gradients", "ink"),
    "zero_optimizer_bytes": ("optimizer", "optimizer states", "ink"),
}


def four_stages(**given):
    """The four stages: bytes by kind, their sum, what a rank sends, and the card's bytes."""
    names = (*KINDS, "zero_states_bytes", "zero_sent_bytes")
    found = {**FIVE, **given}
    return [
        evaluate(names, allow_unused=True, **quantities(**found, zero_stage=z)) for z in range(4)
    ]


def draw_stages():
    found, card = four_stages(), quantities(gpu=FIVE["gpu"])["gpu_memory_bytes"]
    drawing, left, long = Drawing("zero-stages", "What a rank keeps in stages 0 to 3"), 58, 290
    unit = long / card
    drawing.legend(left, 3, [(look, label) for look, label, _ in KINDS.values()])
    bottom = 42 + 4 * 46
    drawing.path(f"M{left + long} 30V{bottom}", "line dashed")
    for stage, each in enumerate(found):
        top, x = 42 + 46 * stage, left
        drawing.text(0, top + 18, f"stage {stage}", "bold")
        for name, (look, _, ink) in KINDS.items():
            wide = each[name] * unit
            drawing.box(x, top, wide, 26, look)
            words = said(each[name]).removesuffix(" GB")
            if wide > 8 * len(words) + 4:
                drawing.text(x + wide / 2, top + 18, words, f"middle small {ink}")
            x += wide
        total = said(each["zero_states_bytes"])
        drawing.text(min(x + 6, left + long + 5), top + 18, total, "bold small")
        sent = f"sends {said(each['zero_sent_bytes'])} in a step"
        drawing.text(left, top + 40, sent, "small soft")
    drawing.text(left + long, bottom + 16, f"a card of {said(card)}", "small end")
    rows = "; ".join(
        f"stage {stage} keeps {said(each['zero_states_bytes'])} and sends"
        f" {said(each['zero_sent_bytes'])}"
        for stage, each in enumerate(found)
    )
    words = (
        "Four stacked bars of parameters, gradients and optimizer states, against a line at the"
        f" {said(card)} of a card: {rows} in a step. The table lists the parts."
    )
    return drawing.svg(bottom + 22, words)


# --- stage 3, layer by layer ----------------------------------------------------------------------

STAGE_3 = dict(
    zero_stage=3,
    zero_flat_tensors=5,  # units: 32 would be too narrow to see
    link="network, 400 Gbit/s",
    utilisation=0.4,
    latency_seconds=0,
    microbatch_tokens=8192,
    prefetch_units=1,
    reduce_early=1,
)
STEP_LOOKS = {
    "forward": "forward",
    "backward": "backward",
    "gather": "gathered",
    "reduce": "communication",
}


def stage_3_step():
    """The spans of a step of stage 3, with the unit each worked on: (name, unit, start, end); and
    the step's quantities. Units count from 0 in the order of forward."""
    given = quantities(**FIVE, **STAGE_3)
    names = [*quantities_of(MICROBATCH), "zero_states_bytes", "zero_shard_parameters"]
    values = {**given, **evaluate(names, allow_unused=True, **given)}
    units, seen, found = values["zero_flat_tensors"], {}, []
    for one in play(operations(MICROBATCH, values)):
        if one.name == "begin":
            continue
        place = seen.get((one.name, one.phase), 0)
        seen[one.name, one.phase] = place + 1
        unit = place if one.phase == "forward" else units - 1 - place
        found.append((one.name, one.phase, unit, one.start, one.end))
    return found, values


def held_over_time(found, values):
    """Triples: from so many seconds on, a rank holds so many bytes of gathered parameters and of
    whole gradients. A unit's room is taken when its gathering begins and given
    back when it has computed; its gradients are there from its backward to the end of its reduce-
    scatter."""
    unit = values["parameters"] / values["zero_flat_tensors"]
    parameters, gradients = (
        unit * values[name] for name in ("parameter_element_bytes", "gradient_element_bytes")
    )
    changes = []
    for name, phase, number, start, _ in found:
        if name == "gather":
            freed = next(
                last
                for what, when, n, _, last in found
                if (what, when, n) == (phase, phase, number)
            )
            changes += [(start, parameters, 0), (freed, -parameters, 0)]
        if name == "backward":
            reduced = next(last for what, _, n, _, last in found if (what, n) == ("reduce", number))
            changes += [(start, 0, gradients), (reduced, 0, -gradients)]
    changes.sort(key=lambda change: (change[0], change[1] + change[2]))
    sums = accumulate(changes, lambda a, b: (b[0], a[1] + b[1], a[2] + b[2]))
    return [(at, round(whole), round(own)) for at, whole, own in sums]


def draw_stage_3():
    found, values = stage_3_step()
    held, shards = held_over_time(found, values), values["zero_states_bytes"]
    drawing = Drawing("zero-3-step", "A microbatch of stage 3: two streams, and the memory beneath")
    left, right, end = 62, 398, max(stop for *_, stop in found)
    x = lambda seconds: left + (right - left) * seconds / end
    backward = min(start for name, phase, _, start, _ in found if phase == "backward")
    drawing.text(x(backward / 2), 14, "forward", "middle bold")
    drawing.text(x((backward + end) / 2), 14, "backward", "middle bold")
    drawing.text(0, 41, "computes", "small")
    drawing.text(0, 73, "link", "small")
    for name, look in STEP_LOOKS.items():
        top = 24 if name in ("forward", "backward") else 56
        mine = [
            (x(start), x(stop), unit + 1) for what, _, unit, start, stop in found if what == name
        ]
        drawing.boxes([(begin, top, until - begin, 24) for begin, until, _ in mine], f"{look} cut")
        ink = "white" if name == "forward" else "ink"
        signs = [((begin + until) / 2, unit) for begin, until, unit in mine]
        drawing.signs(signs, top + 17, f"middle small {ink}")
    drawing.legend(left, 90, (("gathered", "gather"), ("communication", "reduce-scatter")))
    peak = max(whole + own for _, whole, own in held)
    floor, high = 258, 116
    y = lambda nbytes: floor - high * nbytes / (shards + peak)
    drawing.box(left, y(shards), right - left, floor - y(shards), "optimizer")
    drawing.text(left + 6, y(shards) + 18, f"shards of all states, {said(shards)}", "small ink")
    steps = {
        "gathered": [(at, shards, shards + whole) for at, whole, _ in held],
        "gradients": [(at, shards + whole, shards + whole + own) for at, whole, own in held],
    }
    for look, edges in steps.items():
        drawing.path(
            stepped_area([(x(at), y(lower), y(upper)) for at, lower, upper in edges]), look
        )
    ticks = (0, shards, shards + peak)
    for nbytes in ticks:
        drawing.text(left - 6, y(nbytes) + 5, said(nbytes) if nbytes else "0", "small end")
    drawing.path(f"M{left} {floor}H{right}")
    key = (("gathered", "gathered parameters"), ("gradients", "whole gradients"))
    drawing.legend(left, floor + 10, key)
    units, unit = values["zero_flat_tensors"], values["parameters"] / values["zero_flat_tensors"]
    words = (
        f"Above, {units} units compute, forward then backward; on the link each is gathered while"
        " the one before computes, and its gradients are reduce-scattered. Beneath, on shards of"
        f" {said(shards)}, gathered parameters of one or two units of"
        f" {said(unit * values['parameter_element_bytes'])}, and in backward whole gradients:"
        f" {said(shards + peak)} at most."
    )
    return drawing.svg(floor + 26, words)


def stepped_area(edges):
    """Triples (x, lower edge, upper edge), each until the next, as a path; nothing where the edges
    meet."""
    pieces = []
    for (x, lower, upper), (until, *_) in zip(edges, edges[1:]):
        if lower - upper < 0.05 or until - x < 0.05:
            continue
        if pieces and pieces[-1][1:] == [x, lower, upper]:
            pieces[-1][1] = until
        else:
            pieces.append([x, until, lower, upper])
    return "".join(
        f"M{x:.1f} {lower:.0f}V{upper:.0f}H{until:.1f}V{lower:.0f}z"
        for x, until, lower, upper in pieces
    )


# --- flat, or by rows -----------------------------------------------------------------------------

CUT_UNIT = {"weight": (5, 4), "bias": (5,), "norm": (4,)}
CUT_RANKS = 4


def flat_owners():
    """Parameter -> the rank that owns each of its elements where the unit is one flat tensor."""
    elements = sum(map(prod, CUT_UNIT.values()))
    each, more = divmod(elements, CUT_RANKS)
    owners = [rank for rank in range(CUT_RANKS) for _ in range(each + (rank < more))]
    ends = list(accumulate(map(prod, CUT_UNIT.values())))
    return {
        name: owners[end - prod(shape) : end] for (name, shape), end in zip(CUT_UNIT.items(), ends)
    }


def row_owners():
    """The owners of rows where each parameter is cut along dim 0, as FSDP2 cuts it: equal numbers
    of rows, of which the last ranks miss some."""
    found = {}
    for name, (rows, *rest) in CUT_UNIT.items():
        each = -(-rows // CUT_RANKS)
        found[name] = [row // each for row in range(rows) for _ in range(prod(rest))]
    return found


def padded_rows():
    """Parameter -> the elements that are sent beyond its own, since every rank sends equal rows."""
    return {
        name: (-(-rows // CUT_RANKS) * CUT_RANKS - rows) * prod(rest)
        for name, (rows, *rest) in CUT_UNIT.items()
    }


def draw_two_cuts():
    drawing = Drawing("zero-cuts", "A unit of three parameters on four ranks, cut in two ways")
    halves = ((0, "One flat tensor", flat_owners()), (208, "Each parameter by rows", row_owners()))
    said_ranks = []
    for left, title, owners in halves:
        drawing.text(left, 14, title, "bold")
        top = 28
        cells = {rank: [] for rank in range(CUT_RANKS)}
        for name, shape in CUT_UNIT.items():
            columns = shape[-1]
            drawing.text(left, top + 16, name, "small")
            for row in range(-(-len(owners[name]) // columns)):
                mine = owners[name][row * columns : (row + 1) * columns]
                for column, rank in enumerate(mine):
                    cells[rank].append((left + 56 + 26 * column, top + 22 * row, 25, 21))
            top += 22 * (row + 1) + 10
        for rank, places in cells.items():
            drawing.boxes(places, f"parameters shade{rank}")
            for y in sorted({y for _, y, *_ in places}):
                signs = [(x + 12.5, rank) for x, at, *_ in places if at == y]
                drawing.signs(signs, y + 15, "middle small white" if rank < 1 else "middle small")
        counts = [sum(each.count(rank) for each in owners.values()) for rank in range(CUT_RANKS)]
        drawing.text(left, top + 12, "on ranks 0 to 3: " + ", ".join(map(str, counts)), "small")
        said_ranks.append(counts)
    flat, rows = said_ranks
    pads = sum(padded_rows().values())
    words = (
        f"A unit with a weight of 5 rows and 4 columns, a bias of 5 and a norm of 4 numbers, each"
        f" number labelled with its rank. Left, as one flat tensor: the four ranks own"
        f" {', '.join(map(str, flat))} numbers, and borders fall within rows. Right, each parameter"
        f" cut by rows: the ranks own {', '.join(map(str, rows))} numbers, and to send equal pieces"
        f" {pads} numbers of padding are added."
    )
    return drawing.svg(top + 20, words)


PICTURES = {"zero-stages": draw_stages, "zero-3-step": draw_stage_3, "zero-cuts": draw_two_cuts}
