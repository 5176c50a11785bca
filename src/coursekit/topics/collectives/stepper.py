"""A collective, step by step, in a notebook: the same steps as on the page (collective_steps.py),
as ipywidgets 7.7 or 8.

    stepper("ring all-reduce", 4)                      # a slider over its steps
    stepper("reduce-scatter", 4, plan=my_plan)         # a plan of your own: a function of n that
                                                       # returns lists of moves
    step_picture("ring all-reduce", 4, 2)              # one step, which a stored notebook shows too

Rows are ranks, columns are chunks; the bars of a cell are the ranks whose parts are in it. Letters,
signs and lines say what the colours say. Text takes the colour of the page that it stands on.
"""

from html import escape

import ipywidgets as widgets

from coursekit.show.palette import MEMORY, PAGE, TIMELINE
from coursekit.topics.collectives.steps import COLLECTIVES, label, stepper_steps, texts

HELD_COLOUR, SENT_COLOUR = MEMORY["gathered"], TIMELINE["communication"]
INK_ON_FILL = "#15181b"  # on a fill
LEFT, TOP, CELL, ROW_HEIGHT, LANE = 54, 26, 40, 50, 12


class StepPicture:
    """One step as inline SVG; `sentence` and `detail` say the same in words."""

    def __init__(self, name, n, number, steps):
        self.name, self.n, self.number, self._steps = name, n, number, steps
        self.sentence, self.detail = steps[number].sentence, steps[number].detail

    def __repr__(self):
        return f"{self.sentence} {self.detail}"

    def _repr_html_(self):
        return (
            f"<figure style='margin: 0'>{self.svg()}<figcaption style='line-height:"
            f" 1.4'>{escape(self.sentence)}<br>"
            f"<small>{escape(self.detail)}</small></figcaption></figure>"
        )

    def svg(self):
        shown, n, step = COLLECTIVES[self.name], self.n, self._steps[self.number]
        self._single, self._exchange = not shown.cut, shown.have == "for all"
        heads = (
            ["knows of" if shown.hearsay else "message"]
            if self._single
            else (
                [f"for {rank}" for rank in range(n)] + [f"from {rank}" for rank in range(n)]
                if self._exchange
                else [label(shown, n, chunk) for chunk in range(n)]
            )
        )
        self._pitch = (
            330 if self._single else min(96, (500 if self._exchange else 560) // len(heads))
        )
        self._wide = self._pitch - (
            30 if self._single else 3 if self._exchange else max(14, self._pitch // 4)
        )
        width, height = (
            self._x(len(heads)) + (LANE * n if self._single else 6),
            TOP + ROW_HEIGHT * n,
        )
        moves = [move._replace(chunk=0) if shown.hearsay else move for move in step.moves]
        marks = [_text(0, TOP - 10, "rank", "start")]
        marks += [
            _text(
                self._x(k) + self._wide / 2,
                TOP - 10,
                head.split()[-1] if self._pitch < 45 and self._exchange else head,
            )
            for k, head in enumerate(heads)
        ]
        for rank in range(n):
            marks.append(_text(16, TOP + ROW_HEIGHT * rank + 25, rank, "middle", "bold"))
            held = {
                column: chunk
                for chunk in step.picture[rank]
                for column in self._columns(rank, chunk)
            }
            for column in range(len(heads)):
                chunk = held.get(column)
                parts = step.picture[rank].get(chunk, frozenset())
                move = next(
                    (move for move in moves if (move.target, move.chunk) == (rank, chunk)), None
                )
                added = move and (shown.hearsay or move.operator == "+=")
                came = (
                    self._steps[self.number - 1].picture[move.source][chunk]
                    if move
                    else frozenset()
                )
                old = parts - came if added or not move else frozenset()
                said = (
                    texts(shown, n)[len(parts)]
                    if self._single
                    else ""
                    if chunk is None
                    else label(shown, n, chunk)
                )
                marks.append(
                    self._cell(
                        self._x(column),
                        TOP + ROW_HEIGHT * rank,
                        said,
                        parts,
                        old,
                        shown.need(n),
                        bool(move),
                    )
                )
        for lane, move in enumerate(moves):
            marks.append(self._arrow(move, lane, shown.hearsay or move.operator == "+="))
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
            f' aria-label="{escape(self.sentence)}" width="{width}" height="{height}" viewBox="0 0'
            f' {width} {height}" style="max-width: 100%; height: auto; font: 13px system-ui,'
            f' sans-serif">{"".join(marks)}</svg>'
        )

    def _columns(self, rank, chunk):
        """Where a chunk stands in a rank's row; in an exchange, what it has for each rank, and then
        what it got from each."""
        if not self._exchange:
            return [chunk]
        source, target = divmod(chunk, self.n)
        return [target] * (source == rank) + [self.n + source] * (target == rank)

    def _x(self, column):
        return LEFT + self._pitch * column + (70 if self._exchange and column >= self.n else 0)

    def _cell(self, x, y, said, parts, old, need, came):
        if not parts:
            return _box(
                x, y, self._wide, CELL, "none", PAGE.line, 'class="cell" stroke-dasharray="2 4"'
            )
        full, bar = len(parts) >= need, (self._wide - 10) / self.n
        drawn = [
            _box(
                x,
                y,
                self._wide,
                CELL,
                HELD_COLOUR.light if full else "none",
                SENT_COLOUR.line if came else HELD_COLOUR.line,
                f'class="cell" stroke-width="{2.5 if came else 1.25}"',
            )
        ]
        drawn.append(
            _text(
                x + min(6, self._wide / 9),
                y + (16 if need > 1 else 27),
                said,
                "start",
                "bold",
                INK_ON_FILL if full else "currentColor",
            )
        )
        for rank in sorted(parts) if need > 1 else ():
            here = HELD_COLOUR if rank in old else SENT_COLOUR
            drawn.append(_box(x + 5 + rank * bar + 0.5, y + 21, bar - 1, 14, here.light, here.line))
            if bar >= 13:
                drawn.append(
                    _text(
                        x + 5 + (rank + 0.5) * bar,
                        y + 32,
                        rank,
                        "middle",
                        "normal",
                        INK_ON_FILL,
                        11,
                    )
                )
        return "".join(drawn)

    def _arrow(self, move, lane, adds):
        """An arrow from the sender's cell to the receiver's, beside their column, and the sign of
        what happens there."""
        column = self._columns(move.target, move.chunk)[-1]
        edge, start, end = (
            self._x(column) + self._wide,
            TOP + ROW_HEIGHT * move.source + 32,
            TOP + ROW_HEIGHT * move.target + 23,
        )
        across = edge + (16 + LANE * lane if self._single else (self._pitch - self._wide) / 2 + 1)
        path, head = f"M{edge} {start}H{across}V{end}H{edge + 6}", f"M{edge} {end}l7 -4v8z"
        if self._exchange:
            to = self._x(self.n) - 2
            path, head = (
                f"M{self._x(self.n - 1) + self._wide + 2} {start - 12}L{to - 6} {end - 3}",
                f"M{to} {end - 3}l-7 -4v8z",
            )
        at, sign = (
            f"{edge - 4} {TOP + ROW_HEIGHT * move.target + 3}",
            "M-3.5 0h7M0 -3.5v7" if adds else "M-3.5 -1.9h7M-3.5 1.9h7",
        )
        return (
            f'<path class="move" d="{path}" fill="none" stroke="{SENT_COLOUR.line}"'
            ' stroke-width="2"/>'
            f'<path d="{head}" fill="{SENT_COLOUR.line}"/><g transform="translate({at})">'
            f'<circle r="7.5" fill="#fff" stroke="{SENT_COLOUR.line}" stroke-width="2"/>'
            f'<path d="{sign}" stroke="{INK_ON_FILL}" stroke-width="2"/></g>'
        )


def _box(x, y, width, height, fill, line, more=""):
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
        f' rx="{4 if height > 20 else 0}" fill="{fill}" stroke="{line}" {more}/>'
    )


def _text(x, y, words, anchor="middle", weight="normal", fill="currentColor", size=13):
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
        f' font-size="{size}" fill="{fill}">{escape(str(words))}</text>'
    )


def step_picture(name, n, number, plan=None):
    """Step `number` of the collective on n ranks, to display; 0 is before the first. Raises
    ValueError as stepper_steps does, and for a step that does not exist."""
    steps = stepper_steps(name, n, plan)
    if not 0 <= number < len(steps):
        raise ValueError(
            f"number = {number}: {name} on {n} ranks has steps 1 to {len(steps) - 1}, and 0 before"
            " them."
        )
    return StepPicture(name, n, number, steps)


class Stepper(widgets.VBox):
    """A slider over the steps, a picture and a sentence."""

    def __init__(self, name, n, plan):
        self.name, self.n, self.steps = name, n, stepper_steps(name, n, plan)
        self.slider = widgets.IntSlider(
            value=0,
            min=0,
            max=len(self.steps) - 1,
            description="step",
            layout=widgets.Layout(width="30em"),
        )
        self.picture = widgets.HTML()
        self.slider.observe(lambda change: self._show(), "value")
        super().__init__(
            [
                widgets.HTML(f"<b>{escape(name[0].upper() + name[1:])} on {n} ranks</b>"),
                self.slider,
                self.picture,
            ]
        )
        self._show()

    def _show(self):
        self.picture.value = StepPicture(
            self.name, self.n, self.slider.value, self.steps
        )._repr_html_()

    def __repr__(self):
        return f"{self.name} on {self.n} ranks: {self.steps[self.slider.value].sentence}"


def stepper(name, n=4, plan=None):
    """The collective to step through; see `stepper_steps` for what may be given and what is
    refused."""
    return Stepper(name, n, plan)
