"""Is this list a schedule? The static half: what can be seen without running it.

    print(picture(plan))                    the grid: a row for each rank
    check_order(plan, microbatches=4)       raises InvalidSchedule, with the grid and the bad cell

simulation.validate_schedule asks also whether the ranks would get through.
"""

from .schedules import Action, InvalidSchedule, Kind, Schedule


def picture(plan: Schedule, marked: set[tuple[int, int]] = frozenset()) -> str:
    """A row for each rank, a column for each of its actions; the marked cells, which are (rank,
    number of the action), stand out."""
    texts = [
        [
            f">{action!r}<" if (rank, number) in marked else f" {action!r} "
            for number, action in enumerate(actions)
        ]
        for rank, actions in enumerate(plan)
    ]
    width = max((len(text) for texts_of_rank in texts for text in texts_of_rank), default=0)
    return "\n".join(
        f"rank {rank} |" + "".join(text.ljust(width) for text in own).rstrip()
        for rank, own in enumerate(texts)
    )


def check_order(plan: Schedule, microbatches: int) -> None:
    """Raises InvalidSchedule unless each stage is on one rank and does each microbatch once: F and
    B, or F, I and W."""
    if not plan or not all(plan):
        raise InvalidSchedule("every rank of a schedule has at least one action.")
    home: dict[int, int] = {}
    for rank, actions in enumerate(plan):
        seen: set[Action] = set()
        for number, action in enumerate(actions):
            wrong = complaint(action, rank, home, seen, microbatches)
            if wrong:
                grid = picture(plan, {(rank, number)})
                raise InvalidSchedule(f"rank {rank}, action {number}, {action!r}: {wrong}.\n{grid}")
            seen.add(action)
    every = {action for actions in plan for action in actions}
    for stage in range(max(home) + 1):
        for microbatch in range(microbatches):
            parts = [kind.value for kind in Kind if Action(stage, kind, microbatch) in every]
            if parts not in (["F", "B"], ["F", "I", "W"]):
                raise InvalidSchedule(
                    f"stage {stage} does {' and '.join(parts) or 'nothing'} of microbatch"
                    f" {microbatch}: it must do F and B, or F, I and W.\n{picture(plan)}"
                )


def complaint(
    action: Action, rank: int, home: dict[int, int], seen: set[Action], microbatches: int
) -> str:
    """The fault of an action after those that the rank has done, in words; empty if there is
    none."""
    stage, kind, microbatch = action
    if not 0 <= microbatch < microbatches:
        return f"microbatches go from 0 to {microbatches - 1}"
    if home.setdefault(stage, rank) != rank:
        return f"stage {stage} is on rank {home[stage]} already"
    if action in seen:
        return "the rank has done it already"
    before = {Kind.BACKWARD: Kind.FORWARD, Kind.INPUT: Kind.FORWARD, Kind.WEIGHT: Kind.INPUT}
    if kind in before and (need := Action(stage, before[kind], microbatch)) not in seen:
        return f"{need!r} has to come first"
    return ""
