"""Still picture of the chapter on pipelines: the activations that each rank holds over a step, with
GPipe and with 1F1B."""

from itertools import accumulate

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import Drawing
from coursekit.show.format import format_as
from shardlab.pipelines.schedules import Kind, schedule
from shardlab.pipelines.simulation import simulate

HELD_MODEL = dict(  # of the chapter's table
    model="Llama 3 8B",
    recipe="bf16 + fp32 master",
    sequence=8192,
    microbatch=1,
    fused_attention=1,
    dropout=0,
    pipeline_parallel=4,
    microbatches=16,
    stages_per_rank=1,
)
HELD_SCHEDULES = ("GPipe", "1F1B")


def microbatches_over_time(name):
    """Pairs for each rank: from this unit of time on the rank holds so many microbatches. A forward
    takes one unit and a backward two; messages take none. And the units of the step."""
    ranks, microbatches = HELD_MODEL["pipeline_parallel"], HELD_MODEL["microbatches"]
    timeline = simulate(schedule(name, ranks=ranks, microbatches=microbatches))
    found = []
    for spans in timeline.spans:
        changes = sorted(
            (span.begin, 1) if span.action.kind is Kind.FORWARD else (span.end, -1)
            for span in spans
        )
        counts = accumulate(change for _, change in changes)
        found.append([*dict(zip((at for at, _ in changes), counts)).items()])  # one at a time
    return found, timeline.seconds


def microbatch_bytes(rank):
    """Bytes that a rank keeps of one microbatch: activations of its layers, and on the last rank
    those of the head and the loss."""
    names = ("stage_layers", "layer_activation_bytes", "rank_exit_bytes")
    given = quantities(**HELD_MODEL, pipeline_rank=rank)
    layers, nbytes, at_the_end = evaluate(names, allow_unused=True, **given).values()
    return layers * nbytes + at_the_end


def draw_held():
    drawing = Drawing("pipeline-held", "Activations that each rank holds over a step")
    tall, pitch, heard = 56, 82, []
    last = HELD_MODEL["pipeline_parallel"] - 1
    high = tall / (HELD_MODEL["microbatches"] * microbatch_bytes(last))  # of a byte
    top = 30
    for left, name in zip((52, 230), HELD_SCHEDULES):
        ranks, end = microbatches_over_time(name)
        x = lambda at, left=left, end=end: left + 168 * at / end
        drawing.text(left, 14, name, "bold")
        peaks = []
        for rank, points in enumerate(ranks):
            floor, one = top + pitch * rank + tall + 14, microbatch_bytes(rank)
            if left == 52:
                drawing.text(0, floor - 2, f"rank {rank}", "small")
            steps = f"M{x(points[0][0]):.1f} {floor}"
            for at, count in points:
                steps += f"H{x(at):.1f}V{floor - high * one * count:.1f}"
            drawing.path(f"{steps}z", "activations")
            drawing.path(f"M{left} {floor}h168")
            most = max(count for _, count in points)
            at = next(at for at, count in points if count == most)
            peaks.append(format_as(most * one, "bytes"))
            drawing.text(x(at), floor - high * one * most - 5, peaks[-1], "small bold")
        drawing.text(left, floor + 18, f"a step of {end} units", "small")
        heard.append(f"{name}: {', '.join(peaks)}")
    bottom = top + pitch * 3 + tall + 14
    words = (
        f"Two columns of {len(ranks)} outlines on one scale, time to the right, bytes of"
        " activations upwards. In GPipe each rises to all microbatches and falls again; in 1F1B"
        " each rises a few steps, the first rank most, and stays there. At most, rank by rank,"
        f" {'; '.join(heard)}."
    )
    return drawing.svg(bottom + 24, words)


PICTURES = {"pipeline-held": draw_held}
