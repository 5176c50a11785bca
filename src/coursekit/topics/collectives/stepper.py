"""A collective, step by step, in a notebook: the page's own stepper, as a LiveOutput
(show/embed.py).

    stepper("ring all-reduce", 4)
    stepper("reduce-scatter", 4, plan=my_plan)         # a plan of your own: a function of n that
                                                       # returns lists of moves
"""

from html import escape

from coursekit.show.card import foot, frame, json_in_html
from coursekit.show.embed import STATIC, LiveOutput, embedded
from coursekit.show.stepped import inside_of

from .steps import page_data, stepper_steps

FILES = [
    STATIC / name for name in ("svg.js", "stepper.js", "chunks.js", "stepper.css", "chunks.css")
]
BEGIN = """function begin(root) {
  BOOK.stepper(root, JSON.parse(root.querySelector("script[type='application/json']").textContent));
}"""


def stepper(name, n=4, plan=None):
    """The collective to step through; see `stepper_steps` for what may be given and what is
    refused."""
    return Stepper(name, n, plan)


class Stepper(LiveOutput):
    def __init__(self, name, n, plan):
        super().__init__(name, f"{stepper_title(name)}, on {n} ranks:")
        self.n, self.steps, self.data = n, stepper_steps(name, n, plan), page_data(name, n, plan)
        self.begins = min(1, len(self.steps) - 1)

    @property
    def sentence(self):
        return self.steps[self.begins].sentence

    def code(self):
        ident, heading = stepper_ident(self.name), self.title.removesuffix(":")
        place = stepper_look(self.data), "Step", self.steps, self.begins, stepper_room(self.data)
        data = json_in_html({self.name: {self.n: self.data | {"title": heading}}})
        inside = f"""{inside_of(ident, *place)}{foot()}
<script type="application/json">{data}</script>"""
        return embedded(frame(ident, "explorer stepper", heading, inside), FILES, BEGIN)


# --- what the page has, too -----------------------------------------------------------------------


def stepper_ident(name):
    return f"stepper-{name.replace(' ', '-')}"


def stepper_title(name):
    return f"{name[0].upper()}{name[1:]}, step by step"


def stepper_look(data):
    """Words that say where to look, as HTML."""
    return f"""<span class="stepper-look">{escape(data["look"])}</span>
Arrows are what this step sends: + is added, = is put in place."""


def stepper_room(data):
    """The height of chunks.js' picture of these data."""
    ranks, top = len(data["have"]), 42 if data.get("exchange") else 24
    pitch = (40 if data["need"] > 1 else 32) + (6 if ranks > 6 else 9)
    return f"min-height:{top + ranks * pitch}px"
