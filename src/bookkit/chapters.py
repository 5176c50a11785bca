"""The ``{chapter}`` role: a chapter by its number, which the contents give, as a link.

    {chapter}`zero` takes the copies away.                      chapter 6
    Chapters {chapter}`hardware as number` to {chapter}`collectives as number`   2 to 4

The text is the name of a page in a numbered part of ``_toc.yml``. So a chapter that is added or
moved changes no sentence.
"""

from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from bookkit import words
from bookkit.cards import link_to, warn

ONLY_NUMBER = " as number"


class ChapterRole(SphinxRole):
    def run(self):
        name = self.text.removesuffix(ONLY_NUMBER)
        pages = words.chapters(Path(self.env.srcdir))
        numbers = {page.stem: number for number, page in enumerate(pages, 1)}
        if name not in numbers:
            said = f"chapter: {name!r} is not a page of a numbered part; there are "
            warn(self.get_location(), "chapters", f"{said}{', '.join(numbers)}.")
            return [nodes.Text(name)], []
        said = str(numbers[name]) if self.text != name else f"chapter {numbers[name]}"
        target = pages[numbers[name] - 1].relative_to(self.env.srcdir).with_suffix("")
        return [link_to(said, f"/{target.as_posix()}", self.env.docname)], []


def setup(app):
    app.add_role("chapter", ChapterRole())
