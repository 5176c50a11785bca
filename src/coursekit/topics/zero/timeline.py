"""One microbatch of a ZeRO step as events: what formulas.py says in closed form. The forward is one
that gathers, the backward one that reduces; coursekit/formulas/events.py plays them.
"""

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat

TIMELINE_UNITS = "zero_flat_tensors"
AHEAD, WAITS = ("prefetch_units", 1), ("prefetch_units", 0)
EARLY, LATE = ("reduce_early", 1), ("reduce_early", 0)
NOTHING_GATHERED, KEPT = ("zero_stage", 0), ("zero_backward_gatherings", 0)


def gathering(seconds, *after):
    return Event("gather", LINK, seconds, after)


def work(name, seconds, *after):
    return Event(name, COMPUTE, seconds, after)


REDUCE = Event("reduce", LINK, "unit_reduce_seconds", ("backward",))


def ahead(name, busy, alone, seconds, begins_after, reduce=()):
    """Each unit asks for the next one when it begins; the last has none to ask for."""
    begin = Event("begin", COMPUTE, after=begins_after)
    return (
        gathering(seconds),
        Repeat(
            TIMELINE_UNITS, (begin, gathering(seconds, "begin"), work(name, busy), *reduce), less=1
        ),
        begin,
        work(name, alone),
        *reduce,
    )


FORWARD = Phase(
    "forward",
    (
        Repeat(
            TIMELINE_UNITS, (work("forward", "unit_forward_seconds"),), when=(NOTHING_GATHERED,)
        ),
        Repeat(
            TIMELINE_UNITS,
            (
                gathering("unit_gather_seconds", "forward"),
                work("forward", "unit_forward_seconds", "gather"),
            ),
            when=(WAITS,),
            unless=(NOTHING_GATHERED,),
        ),
        *(
            entry._replace(when=(AHEAD,), unless=(NOTHING_GATHERED,))
            for entry in ahead(
                "forward",
                "unit_busy_forward_seconds",
                "unit_forward_seconds",
                "unit_gather_seconds",
                ("gather",),
            )
        ),
    ),
)
BACKWARD = Phase(
    "backward",
    (
        # parameters are there: stages 0 to 2
        Repeat(TIMELINE_UNITS, (work("backward", "unit_backward_seconds"),), when=(KEPT, LATE)),
        Repeat(TIMELINE_UNITS, (REDUCE,), when=(KEPT, LATE)),
        Repeat(
            TIMELINE_UNITS,
            (work("backward", "unit_busy_backward_seconds"), REDUCE),
            when=(KEPT, EARLY),
        ),
        # parameters are gathered: stage 3
        Repeat(
            TIMELINE_UNITS,
            (
                gathering("unit_gather_seconds", "backward"),
                work("backward", "unit_backward_seconds", "gather"),
                REDUCE,
            ),
            when=(WAITS,),
            unless=(KEPT,),
        ),
        *(
            entry._replace(when=(AHEAD, early), unless=(KEPT,))
            for early, begins_after in ((EARLY, ("gather",)), (LATE, ("gather", "reduce")))
            for entry in ahead(
                "backward",
                "unit_busy_backward_seconds",
                "unit_backward_seconds",
                "unit_gather_seconds",
                begins_after,
                (REDUCE,),
            )
        ),
    ),
)
MICROBATCH = (FORWARD, BACKWARD)
COLOURS = (
    ("forward", "forward", "timeline-forward"),
    ("backward", "backward", "timeline-backward"),
    ("gather", "gather", "memory-gathered"),
    ("reduce", "reduce", "timeline-communication"),
)
