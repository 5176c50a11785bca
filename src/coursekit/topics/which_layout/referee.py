"""The planner beside runs that others published: rows of the two tables in tests/, the layout that
each row had, and how far the formulas are from it. The tests and the page's pictures take it from
here.

    errors = [seconds_error(row) for row in seconds_rows("FSDP on H100")]
"""

from coursekit.formulas.presets import KERNELS
from coursekit.formulas.registry import BOOK
from coursekit.planner.layout import PEAKS
from coursekit.planner.runs_published import numbers_in, published_layout, published_rows
from coursekit.planner.speeds import PUBLISHED_SECONDS, SPEEDS, step_values

FITTED = ("nanotron", "FSDP2, compiled")  # kernels with two values that are fitted to odd rows
CLASSES = {
    "Megatron-like": [name for name in KERNELS if name.startswith("Megatron")],
    "nanotron": ["nanotron"],
    "FSDP2": ["FSDP2, compiled"],
}


# --- bytes ----------------------------------------------------------------------------------------


def peak_rows(kernels):
    return [row for row in published_rows(PEAKS) if row["kernels"] == kernels]


def held_out(kernels):
    """The rows by which kernels are judged: all, or those to which no value is fitted."""
    return peak_rows(kernels)[1::2] if kernels in FITTED else peak_rows(kernels)


def peak_bytes(row, **more):
    """The bytes of the rank whose peak was published: the first, the last, or the fullest; `more`
    are quantities that the row does not have."""
    layout = published_layout(row)
    given = {**layout.given, **numbers_in(row["more"]), **more}
    last = layout.pipeline_parallel - 1
    ranks = dict(first={0}, last={last}).get(row["rank"], {0, min(1, last), last})
    peaks = [
        BOOK.evaluate(["rank_peak_bytes"], allow_unused=True, **given, pipeline_rank=rank)
        for rank in ranks
    ]
    return max(found["rank_peak_bytes"] for found in peaks)


def measured_bytes(row):
    return float(row["allocated_GiB"] or row["reserved_GiB"]) * 2**30


def bytes_error(row, **more):
    """In percent of the published peak."""
    return 100 * (peak_bytes(row, **more) / measured_bytes(row) - 1)


# --- seconds --------------------------------------------------------------------------------------


def seconds_rows(speed):
    return [row for row in published_rows(PUBLISHED_SECONDS) if row["speed"] == speed]


def seconds_error(row, speed=None):
    """In percent of the published seconds, at the speed of the row's class or at another."""
    speed = speed or SPEEDS[row["speed"]]
    found = step_values(published_layout(row), speed, **numbers_in(row["more"]))
    return 100 * (found["layout_seconds"] / float(row["seconds"]) - 1)


def mean(errors):
    return sum(map(abs, errors)) / len(errors)
