"""The ``{planner}`` directive: a card that searches all legal layouts of a model on a number of
GPUs, below the explorer of a rank, and hands the layout that a reader clicks to that explorer.

    ```{explorer} rank-of-any-layout
    ```

    ```{planner} rank-of-any-layout
    ```

The search is coursekit.planner.search's, in static/layouts.js; static/planner.js is the card. What
the card shows before any script has run is the planner's answer to the explorer's own question.
"""

import json
from html import escape

from docutils import nodes

from bookkit.cards import CardDirective, add_card, frame
from bookkit.explorer import explorer
from coursekit.formulas.presets import GPUS, MODELS
from coursekit.show.card import STATUS, json_in_html, labelled, menu
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as
from coursekit.topics.which_layout.planner_page import (
    PLAN_COLUMNS,
    binds,
    cells,
    data,
    plan_command,
    published,
)

CONFIG = "a config.json ..."


class planner(nodes.General, nodes.Element):
    """The place of the card in a page; ``name`` is that of the explorer above it."""


class PlannerDirective(CardDirective):
    def make(self):
        name = self.argument({name for name, spec in EXPLORERS.items() if spec.parts})
        if not any(node["name"] == name for node in self.on_this_page(explorer)):
            raise ValueError(f"no explorer {name!r} stands above it on this page.")
        self.first_on_this_page(planner, name)
        return planner(name=name)


def card(spec):
    """The planner of an explorer, as HTML."""
    ident = f"planner-{spec.name}"
    start = spec.start()
    fields = (
        _menu(ident, "model", "Model", [*MODELS, CONFIG], spec.begin["model"]),
        _menu(ident, "gpu", "GPU", list(GPUS), spec.begin["gpu"]),
        *(
            labelled(
                f"{ident}-{name}",
                label,
                f'<input type="text" inputmode="numeric" id="{ident}-{name}" data-asked="{name}"'
                f' value="{format_as(value, "exact")}">',
            )
            for name, label, value in (
                ("gpus", "GPUs", _gpus(start)),
                ("batch", "sequences in a step", _batch(start)),
                ("sequence", "tokens in a sequence", start["sequence"]),
            )
        ),
    )
    inside = f"""<div class="explorer-menus">{"".join(fields)}</div>
<div class="planner-config" hidden><label for="{ident}-text">Paste the model's config.json, or
 choose the file; nothing leaves this page</label>
<textarea id="{ident}-text" rows="3" spellcheck="false"></textarea>
<input type="file" accept=".json,application/json" aria-label="config.json as a file"></div>
<div class="planner-tool"><label for="{ident}-tool">Or show the layout of a file of DeepSpeed
 (JSON) or torchtitan (TOML)</label>
<input type="file" id="{ident}-tool" accept=".json,.toml">
<p class="planner-read" role="status"></p></div>
<p class="explorer-error" role="alert" hidden></p>
{_answer(ident, spec)}
<script type="application/json">{json_in_html(data())}</script>
<script>BOOK.planner({json.dumps(ident)}, {json.dumps(spec.name)});</script>"""
    return frame(ident, "planner", "planner", "Which layout is the fastest?", inside)


def _menu(ident, kind, label, names, chosen):
    return menu(f"{ident}-{kind}", label, names, chosen, attributes=f' data-asked="{kind}"')


def _gpus(start):
    return start["data_parallel"] * start["tensor_parallel"] * start["pipeline_parallel"]


def _batch(start):
    return start["data_parallel"] * start["microbatch"] * start["accumulation_steps"]


# --- the answer -----------------------------------------------------------------------------------


def _answer(ident, spec):
    """The planner's answer to the explorer's question, as planner.js writes it."""
    from coursekit.planner.plan import plan  # NumPy, which nothing else here needs

    start = spec.start()
    asked = dict(gpu=spec.begin["gpu"], gpus=_gpus(start), sequence=start["sequence"])
    asked |= {name: spec.begin[name] for name in ("recipe", "kernels")}
    asked |= dict(model=spec.begin["model"], batch=_batch(start))
    found = plan(**asked)
    heads = "".join(
        f'<th scope="col" title="{words}"{" class=number" if place > 5 else ""}>{head}</th>'
        for place, (head, words) in enumerate(PLAN_COLUMNS)
    )
    names = [head for head, _ in PLAN_COLUMNS]
    rows = "".join(
        f"<tbody><tr>{''.join(map(_cell, names, cells(one)))}</tr>"
        f'<tr class="planner-binds"><td colspan="{len(names)}">{escape(binds(one))}</td></tr>'
        "</tbody>"
        for one in found.best
    )
    compared = found.compared
    return f"""<p class="explorer-sentence">{_said(found)}</p>
{STATUS}
<table class="table planner-best" aria-labelledby="{ident}-title">
<thead><tr>{heads}</tr></thead>{rows}</table>
<div class="planner-nearest" hidden></div>
<p class="explorer-detail">How accurate is this? Bytes:
 <span class="planner-bytes">{escape(published(compared["bytes"]))}</span>. Seconds:
 <span class="planner-seconds">{escape(published(compared["seconds"]))}</span>.</p>
<p class="explorer-detail">In a shell:
 <code class="planner-command">{escape(plan_command(**asked))}</code></p>"""


def _cell(head, text):
    """A cell; the first one's text has the place of the button that planner.js makes of it."""
    shown = f"<span>{escape(text)}</span>" if head == PLAN_COLUMNS[0][0] else escape(text)
    return f'<td data-head="{head}">{shown}</td>'


def _said(found):
    return (
        f"{found.legal:,} legal layouts, {found.fitting:,} fit. The fastest, one for each pair of t"
        f" and p; with {escape(found.asked.recipe)}, {escape(found.asked.kernels)}."
    )


# --- in a Sphinx build --------------------------------------------------------------------------


def setup(app):
    shown = lambda node, builder: card(EXPLORERS[node["name"]])
    add_card(app, planner, PlannerDirective, shown, {"planner.js": 830})
