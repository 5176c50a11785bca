"""The Sphinx extension of the book.

Each part is a module with a ``setup(app)`` of its own and can be read alone:

- ``build``    ``python -m bookkit``; what makes a page stale
- ``mathml``   formulas become MathML while the book is built: no script in the page
- ``boxes``    the four boxes: predict, measured, which number is right, in the wild
- ``cards``    what directives of cards and pictures share
- ``explorer`` the cards: controls, a picture and a sentence, live without a server
- ``modules``  the explorers as files for pages that are not the book's
- ``stepper``  a collective step by step: its plan, drawn and said
- ``shards``   the same card for a training step under ZeRO: who holds which shard
- ``pairs``    the same card for a block cut among ranks: what is sent forward and backward
- ``traces``   stored traces of steps, to zoom into, and their numbers; ``trace_images`` as files
- ``schedules`` schedules of pipelines as small grids, from the lists that ranks run
- ``bits``     a number in six formats, bit by bit
- ``gradients`` recorded gradients beside what a format holds
- ``formulas`` numbers and equations out of the formula registry; ``formula_sheet`` prints it
- ``laws``     short formulas that the registry confirms while the book is built
- ``glossary`` words with a definition, shown on hover
- ``objectives`` the opening of a chapter: objectives and measured times, beside its first picture
- ``chapters`` a chapter by the number that the contents give it
- ``ways``     from page to page: each chapter's question, the way to its lab and back
- ``described`` what others show of a page: its title, its question, its first sentences; and
  llms.txt, which lists the pages with a sentence each
- ``diffs``    what changes from one class or function to the next, out of the source
- ``lab_pages`` a lab's page without the guesses of the stored lab
- ``recorded`` what was recorded on a GPU, or the words that nothing was yet
- ``look``     fonts, style sheets, icons, and the palettes as CSS variables
- ``search``   the text of all pages, for a search that works from a disk
- ``offline``  what the theme ships and nobody uses is left out; no page asks anything outside the
  book
- ``policy``   a page runs the scripts of the book and no others
- ``address``  repository, issue and Colab buttons from one address; the learner's edition of a lab,
  and the wheel
"""

__version__ = "0.1.0"


# The order of parts that are not cards; cards stand between them, in alphabetical order.
BEFORE_CARDS = ("build", "mathml", "boxes", "chapters")
AFTER_CARDS = (
    *("formulas", "formula_sheet", "laws", "glossary", "ways", "diffs", "objectives", "recorded"),
    *("lab_pages", "look", "search", "described", "offline", "policy", "address"),
)


def parts():
    """The modules with a ``setup``, in the order in which they are set up. A module that is not
    named above is a card and needs no entry."""
    # Imported here, so that ``python -m bookkit`` can say what it wants before Jupyter Book is
    # loaded (see build.py).
    from importlib import import_module
    from pkgutil import iter_modules

    names = (found.name for found in iter_modules(__path__) if found.name != "__main__")
    modules = {name: import_module(f"{__name__}.{name}") for name in sorted(names)}
    set_up = [name for name, module in modules.items() if hasattr(module, "setup")]
    cards = [name for name in set_up if name not in BEFORE_CARDS + AFTER_CARDS]
    return [modules[name] for name in (*BEFORE_CARDS, *cards, *AFTER_CARDS)]


def setup(app):
    for part in parts():
        part.setup(app)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
