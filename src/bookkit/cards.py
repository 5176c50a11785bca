"""The base of the directives of cards and pictures: an author's mistake is a warning at its place,
and the page goes on without the card."""

from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


def anchors(node):
    """The places to which links to a card lead: the labels that stand above it in the text."""
    return "".join(f'<span id="{name}"></span>' for name in node["ids"])


FULL_SCREEN = (  # last in a card's foot: book.js
    '<button type="button" class="present-open" title="On the whole screen, for a room: f">Full'
    " screen</button>"
)


def live(function):
    """First in a card: where the script is that will call BOOK.function, the card has its last
    shape from the start."""
    there = f"window.BOOK && BOOK.{function}"
    return f'<script>if ({there}) document.currentScript.parentNode.classList.add("live");</script>'


class CardDirective(SphinxDirective):
    """A directive that puts one card into the page. `make()` returns the card's node, or raises
    ValueError with what the author has to mend; then the page has a warning instead."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        try:
            node = self.make()
        except ValueError as wrong:
            logger.warning(
                f"{self.name}: %s",
                wrong,
                location=self.get_location(),
                type="bookkit",
                subtype=self.name,
            )
            return []
        self.set_source_info(node)
        return [node]

    def argument(self, known):
        """The name that the author gave; ValueError where it is none of those."""
        name = " ".join(self.arguments[0].split())
        if name not in known:
            raise ValueError(f"none is named {name!r}; there are {', '.join(sorted(known))}.")
        return name

    def on_this_page(self, kind):
        """The cards of a kind of node that stand above."""
        return list(self.state.document.findall(kind))

    def first_on_this_page(self, kind, name):
        """ValueError where a card of the kind and of that name stands above."""
        if any(node["name"] == name for node in self.on_this_page(kind)):
            raise ValueError(f"{name!r} is on this page already.")
