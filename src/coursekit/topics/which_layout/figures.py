"""plotly figures of layouts: bytes of their fullest rank beside a card, and their step in parts."""

from coursekit.planner.speeds import SECONDS_BY_LOOK
from coursekit.show.figures import stacked_figure
from coursekit.show.palette import MEMORY, TIMELINE
from coursekit.topics.which_layout.moves import RankBar

GIGA = 10**9


def layouts_figure(title, layouts):
    """A bar for each layout, name -> RankLayout, and a line for the card."""
    held = {name: RankBar(layout) for name, layout in layouts.items()}
    kinds = {
        kind: ([one.kinds[kind] / GIGA for one in held.values()], MEMORY[kind])
        for kind in next(iter(held.values())).kinds
    }
    figure = stacked_figure(f"{title} (GB)", list(held), kinds, "%{y}: %{x:,.3g} GB")
    card = next(iter(held.values())).values["gpu_memory_bytes"] / GIGA
    figure.add_vline(
        x=card, line=dict(dash="dash", width=2), annotation_text=f"card, {card:.1f} GB"
    )
    return figure


def steps_figure(title, steps):
    """A bar for each step, name -> parts -> seconds."""
    looks = {
        words: (
            [sum(parts[name] for name in names) for parts in steps.values()],
            TIMELINE[look.replace("-", "_")],
        )
        for look, (words, names) in SECONDS_BY_LOOK.items()
    }
    return stacked_figure(f"{title} (s)", list(steps), looks, "%{y}: %{x:,.3g} s")
