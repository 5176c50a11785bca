"""Still pictures of the page "The referee": how far each published run is from its prediction, a
dot for a run in a row for its class."""

from collections import defaultdict

from coursekit.planner.speeds import SPEEDS
from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.topics.which_layout import referee

_LEAST, _MOST = -100, 80  # percent; what is beyond is drawn at the edge
_LEFT, _RIGHT = 8, PICTURE_WIDTH - 8
_DOT, _PITCH = 1.9, 5  # radius and distance of dots
_HEAD, _GAP = 20, 16  # the words above a class, and the room below it


def _place(error):
    """x of an error in percent."""
    inside = max(_LEAST, min(error, _MOST))
    return _LEFT + (_RIGHT - _LEFT) * (inside - _LEAST) / (_MOST - _LEAST)


def _stacks(errors):
    """Column -> the fitted dots and the others, in this order, of the runs with about this
    error."""
    found = defaultdict(list)
    for error, fitted in errors:
        found[round((_place(error) - _place(0)) / _PITCH)].append(fitted)
    return {column: sorted(dots, reverse=True) for column, dots in found.items()}


def draw_errors(name, title, classes):
    """`classes`: name -> pairs of a run's error and whether constants were fitted to it."""
    drawing, top, sentences, marks = Drawing(name, title), 22, [], ([], [])
    tops = []
    drawing.text(_LEFT, 12, "predicted too little", "small soft")
    drawing.text(_RIGHT, 12, "too much", "small soft end")
    for label, errors in classes.items():
        columns = _stacks(errors)
        judged = [error for error, fitted in errors if not fitted]
        mean = referee.mean(judged)
        foot = top + _HEAD + _PITCH * max(map(len, columns.values()))
        tops.append((top + _HEAD - 2, foot))
        drawing.text(_LEFT, top + 13, label, "bold small")
        drawing.text(_RIGHT, top + 13, f"mean {mean:.1f}% of {len(judged)}", "small end")
        drawing.box(_place(-mean), foot + 2, _place(mean) - _place(-mean), 3, "accent")
        for column, dots in columns.items():
            for row, fitted in enumerate(dots):
                x, y = _place(0) + _PITCH * column, foot - _PITCH * (row + 0.5)
                marks[fitted].append((x, y))
        found = [error for error, _ in errors]
        sentences.append(
            f"{label}: {len(judged)} runs that nothing was fitted to, off by {mean:.1f}% on"
            f" average; of all {len(found)} the lowest {min(found):+.1f}%, the highest"
            f" {max(found):+.1f}%"
        )
        top = foot + _GAP
    ticks = range(_LEAST, _MOST + 1, 20)
    for tick in ticks:
        steps = "".join(f"M{_place(tick):.1f} {high}V{low}" for high, low in tops)
        drawing.path(steps, "grid" if tick else "line")
        words = f"{tick:+d}%".replace("-", "−") if tick else "0"
        if tick % 40 == 0:  # closer numbers would meet
            side = "end" if tick == _MOST else "middle"
            drawing.text(_place(tick), top + 8, words, f"small {side}")
    drawing.dots(marks[False], _DOT, "accent")
    drawing.dots(marks[True], _DOT, "line")
    return drawing.svg(
        top + 14,
        "A dot for each run, at the error of its prediction in percent; hollow where constants were"
        f" fitted to the run. A bar is as wide as the mean error. {'; '.join(sentences)}.",
    )


def draw_bytes_errors():
    classes = {}
    for group, names in referee.CLASSES.items():
        classes[group] = [
            (referee.bytes_error(row), kernels in referee.FITTED and number % 2 == 0)
            for kernels in names
            for number, row in enumerate(referee.peak_rows(kernels))
        ]
    return draw_errors("referee-bytes", "Predicted bytes beside published ones", classes)


def draw_seconds_errors():
    classes = {
        name: [
            (referee.seconds_error(row), number % 2 == 0)
            for number, row in enumerate(referee.seconds_rows(name))
        ]
        for name in SPEEDS
    }
    return draw_errors("referee-seconds", "Predicted seconds beside published ones", classes)
