"""Recorded trainings: the loss of each way, at equal steps and at equal seconds.

chart = recorded_chart()
chart["signs"].ends                    # losses after all steps, of three seeds
chart["signs"].after(12.0, CHART_LINKS[1])   # losses after twelve seconds on a link
"""

from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.recordings.recordings import recording_of


class ChartLink(NamedTuple):
    name: str
    bytes_per_second: float
    latency_seconds: float


CHART_LINKS = (
    ChartLink("NVLink", 450e9, 3.4e-6),
    ChartLink("10 Gbit/s", 1.25e9, 9.6e-6),
    ChartLink("1 Gbit/s", 125e6, 9.6e-6),
)
# Seconds are those of GPT-2 on four H100s, 8 sequences of 1,024 tokens each, that send as many
# bytes for each parameter as the small model did.
TIMED = dict(
    **quantities(model="GPT-2 124M", gpu="H100 SXM 80GB"),
    data_parallel=4,
    gradient_element_bytes=4,
    microbatch=8,
    sequence=1024,
    utilisation=0.4,
    reduce_early=1,
)


class ChartedWay(NamedTuple):
    """A way of the recorded chart. `curves` are losses by step, one for each seed."""

    name: str
    number: int  # of gradient_compressor
    given: dict
    rate: float
    step_bytes: float  # for each parameter and step
    curves: list[dict[int, float]]

    @property
    def ends(self) -> list[float]:
        return [curve[max(curve)] for curve in self.curves]

    def step_seconds(self, link: ChartLink) -> float:
        whole = evaluate(["parameters"], allow_unused=True, **TIMED)["parameters"]
        given = TIMED | self.given | dict(gradient_compressor=self.number)
        given |= dict(less_sent_bytes=self.step_bytes * whole, latency_seconds=link.latency_seconds)
        given |= dict(link_bytes_per_second=link.bytes_per_second)
        return evaluate(["less_step_seconds"], allow_unused=True, **given)["less_step_seconds"]

    def after(self, seconds: float, link: ChartLink) -> list[float]:
        """Losses after so many seconds, between two recorded steps on a straight line."""
        return [loss_at(curve, seconds / self.step_seconds(link)) for curve in self.curves]


def loss_at(curve: dict[int, float], step: float) -> float:
    """Between the recorded steps; after the last one, its loss."""
    before = max(at for at in curve if at <= step)
    later = [at for at in curve if at > step]
    if not later:
        return curve[before]
    share = (step - before) / (min(later) - before)
    return (1 - share) * curve[before] + share * curve[min(later)]


def recorded_chart() -> dict[str, ChartedWay]:
    """All ways, in the order in which they were recorded."""
    recording, chart = recording_of("sending_less.sent"), {}
    for row in recording.find("sending_less.sent"):
        name, steps = row.case["way"], row.case["steps"]
        losses = recording.find("sending_less.loss", way=name)
        curves = {one.case["seed"]: {} for one in losses}
        for one in losses:
            curves[one.case["seed"]][one.case["step"]] = one.value
        given = {of: row.case[of] for of in GIVEN_OF_WAYS if of in row.case}
        each = row.value / steps / row.case["parameters"]
        number, rate = row.case["number"], losses[0].case["rate"]
        chart[name] = ChartedWay(name, number, given, rate, each, list(curves.values()))
    return chart


GIVEN_OF_WAYS = (
    "kept_one_in",
    "power_rank",
    "warm_up_share",
    "sync_every",
    "demo_chunk",
    "demo_keep",
)


def recorded_large() -> dict[int, dict[str, list[float]]]:
    """Losses of all seeds, by batch and by way."""
    found: dict = {}
    for row in recording_of("sending_less.large").find("sending_less.large"):
        found.setdefault(row.case["batch"], {}).setdefault(row.case["way"], []).append(row.value)
    return found


def shortest_seconds(chart: dict[str, ChartedWay], link: ChartLink) -> float:
    """Until the fastest way has made all of its steps."""
    return min(max(way.curves[0]) * way.step_seconds(link) for way in chart.values())
