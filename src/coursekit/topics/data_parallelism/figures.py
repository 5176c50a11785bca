"""plotly figures of a step on one rank, and of copies that drift apart.

step_figure("A step with overlap", trace)                   # trace = trace_step(...)
"""

import math

from coursekit.show.figures import draw_lines, new_figure, over_steps, trace_figure


def step_figure(title, trace, until_seconds=0.0):
    """Forward, backward until its last gradient, and a row for each message in the order in which
    they were handed over."""
    backward = trace.forward_seconds, trace.last_gradient_seconds - trace.forward_seconds
    rows = {"forward": [(0, trace.forward_seconds)], "backward": [backward]}
    drawn = {name: [(name, name, bars)] for name, bars in rows.items()}
    for number, message in enumerate(trace.messages, 1):
        drawn[f"message {number}"] = [(f"message {number}", "communication", [message])]
    return trace_figure(title, drawn, until_seconds)


def step_figures(traces, link):
    """A figure of each step, on one scale; `traces` is whether messages overlap -> Trace."""
    longest_seconds = max(trace.whole_seconds for trace in traces.values())
    for overlap, trace in traces.items():
        words = f"{('no overlap', 'overlap')[overlap]}, {link}: {1000 * trace.whole_seconds:.0f} ms"
        yield step_figure(words, trace, longest_seconds)


def drift_figure(copies):
    """Lines over the steps: how far apart the copies of a model are; name -> after each step, the
    distances of its tensors."""
    lengths = {
        name: over_steps([math.hypot(*one) for one in steps]) for name, steps in copies.items()
    }
    figure = new_figure("How far apart are the copies?", 320)
    return draw_lines(figure, lengths, "step", "distance from rank 0", "step %{x}: %{y}")


def handed_over_figure(counts):
    """Lines over the gradients of a backward: how many all-reduces have been handed over when each
    arrives; name -> a count at each gradient."""
    lines = {name: over_steps(of_gradients) for name, of_gradients in counts.items()}
    figure = new_figure("How many buckets have left?", 320)
    return draw_lines(figure, lines, "gradient", "all-reduces handed over", "gradient %{x}: %{y}")
