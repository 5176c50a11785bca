"""The ``{pairs}`` directive: a block cut among ranks, forward and backward, live without a server.

    ```{pairs} tensor
    :ranks: 4
    ```

The argument is the way that is shown first, the option on how many ranks; the reader chooses
others. The card is a stepper's (``stepper.py``), ``static/shards.js`` draws what it shows. Moves,
words and numbers are data (``shardlab.topics.tensor_parallelism.steps``): those of the first
picture stand in the card, the others in a script that is fetched when the reader asks for another.
Without a script, and on paper, a table says the same moves.
"""

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from bookkit import stepper
from shardlab import topics

# The topic whose steps these are, found by what it has.
_steps = next(found for found in topics.modules("steps") if hasattr(found, "pair_steps"))
FIRST_SHOWN = _steps.FIRST_SHOWN
PAIR_LOOK = _steps.PAIR_LOOK
PAIR_WAYS = _steps.PAIR_WAYS
RANKS = _steps.RANKS
page_data = _steps.page_data
pair_steps = _steps.pair_steps

logger = logging.getLogger(__name__)

SCRIPT = "_static/pair-steps.js"
IDENT = "pairs"


class pairs(nodes.General, nodes.Element):
    """The place of the card in a page; ``way`` and ``ranks`` are those shown first."""


class PairsDirective(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"ranks": directives.nonnegative_int}

    def run(self):
        way, ranks = " ".join(self.arguments[0].split()), self.options.get("ranks", 4)
        try:
            pair_steps(way, ranks)
            if next(self.state.document.findall(pairs), None) is not None:
                raise ValueError("a block cut among ranks stands on this page already.")
        except ValueError as wrong:
            logger.warning(
                "pairs: %s", wrong, location=self.get_location(), type="bookkit", subtype="pairs"
            )
            return []
        node = pairs(way=way, ranks=ranks)
        self.set_source_info(node)
        return [node]


def card(way, ranks, source):
    """The card as HTML, at the sum; `source` is the address of the script with all other
    pictures."""
    data, steps = page_data(way, ranks), pair_steps(way, ranks)
    first = {key: value for key, value in data.items() if key != "say"}  # the table says it
    menus = stepper.radio_buttons(
        IDENT, "way", "Parallelism", {name: name for name in PAIR_WAYS}, way
    ) + stepper.radio_buttons(IDENT, "n", "Ranks", {n: n for n in RANKS}, ranks)
    return stepper.frame(
        IDENT,
        data["title"],
        PAIR_LOOK,
        menus,
        "Move",
        steps,
        FIRST_SHOWN,
        {way: {ranks: first}},
        source,
        f"The moves of {PAIR_WAYS[way].lower()} on {ranks} ranks.",
    )


def script():
    """Every way on every number of ranks."""
    data = {way: {n: page_data(way, n) for n in RANKS} for way in PAIR_WAYS}
    return f"BOOK.steppers.add({stepper.json_of(data)});\n"


def _visit_html(writer, node):
    page = writer.builder.current_docname
    writer.body.append(card(node["way"], node["ranks"], "../" * page.count("/") + SCRIPT))
    raise nodes.SkipNode


def _add_scripts(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(pairs), None) is not None:
        stepper.add_scripts(app, "shards")


def setup(app):
    app.add_node(
        pairs, html=(_visit_html, None), text=(stepper.skip, None), latex=(stepper.skip, None)
    )
    app.add_directive("pairs", PairsDirective)
    app.connect("builder-inited", lambda app: stepper.write_script(app, SCRIPT, script()))
    app.connect("html-page-context", _add_scripts)
