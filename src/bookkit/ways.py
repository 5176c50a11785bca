"""The way from page to page: the question of each chapter, said once at the top of its page, is
on the front page and beside *previous* and *next*; a chapter ends with the way to its lab, and a
lab with the way back.

    ---
    question: How do eight GPUs add up their gradients?
    lab: labs/04-collectives
    ---

    ```{chapters-and-questions}
    ```

The directive prints a table: each chapter of ``_toc.yml``, below its part, with its question.
"""

import re
from os.path import relpath
from pathlib import Path

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import warn

FRONT_MATTER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)


def question_of(page: Path) -> str:
    """The question at the top of a page, or nothing."""
    found = FRONT_MATTER.match(page.read_text("utf-8")) if page.exists() else None
    return (yaml.safe_load(found[1]) or {}).get("question", "") if found else ""


def parts(folder: Path) -> dict[str, list[Path]]:
    """Caption -> pages of each part of the contents that has chapters, in the order of the
    contents, and those under them that ask a question. A list without a caption continues the part
    above it; one with numbers, or whose pages all ask one, makes its part one of chapters."""
    contents = yaml.safe_load((folder / "_toc.yml").read_text("utf-8"))
    caption, pages, numbered = "", {}, set()
    for part in contents["parts"]:
        caption = part.get("caption", caption)
        listed = [folder / f"{page['file']}.md" for page in part["chapters"]]
        for page, entry in zip(listed, part["chapters"]):
            below = [folder / f"{each['file']}.md" for each in entry.get("sections", ())]
            pages.setdefault(caption, []).extend([page, *filter(question_of, below)])
        if part.get("numbered") or all(map(question_of, listed)):
            numbered.add(caption)
    return {caption: pages[caption] for caption in pages if caption in numbered}


def title_of(page: Path) -> str:
    """The heading of a page."""
    return re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)[1]


class ChaptersDirective(SphinxDirective):
    """The table of chapters. A chapter without a question is a warning."""

    def run(self):
        folder = Path(self.env.srcdir)
        here = Path(self.env.doc2path(self.env.docname)).parent
        self.env.note_dependency(str(folder / "_toc.yml"))
        lines = ["| Chapter | Its question |", "|:--|:--|"]
        for caption, pages in parts(folder).items():
            lines.append(f"| **{caption}** |  |")
            for page in pages:
                self.env.note_dependency(str(page))
                if not (question := question_of(page)):
                    said = "asks no question: write one into its front matter."
                    warn(self.get_location(), "question", f"chapters: {page.name} {said}")
                address = relpath(page, here).replace("\\", "/")
                lines.append(f"| [{title_of(page)}]({address}) | {question} |")
        table = nodes.Element()
        source, number = self.get_source_info()
        self.state.nested_parse(StringList(lines, source), number, table)
        return table.children


def labs_of_chapters(env):
    """The lab's page -> its chapter's."""
    found = ((env.metadata.get(page, {}).get("lab"), page) for page in sorted(env.found_docs))
    return {lab: page for lab, page in found if lab in env.found_docs}


def summary(env, docname) -> str:
    """The question of a page; of a lab, that of its chapter."""
    chapter = labs_of_chapters(env).get(docname, docname)
    return str(env.metadata.get(chapter, {}).get("question", ""))


def onward(env, docname):
    """The way from a chapter to its lab, or back: (what the other page is, the page), or None."""
    labs = labs_of_chapters(env)
    if docname in labs:
        return "The chapter of this lab", labs[docname]
    mine = [lab for lab, chapter in labs.items() if chapter == docname]
    return ("The lab for this chapter", mine[0]) if mine else None


def _add_ways(app, pagename, templatename, context, doctree):
    if doctree is None:
        return
    env, (_, before, after) = app.env, app.builder.relations.get(pagename, (None, None, None))
    context["prev_summary"] = summary(env, before) if before else ""
    context["next_summary"] = summary(env, after) if after else ""
    if found := onward(env, pagename):
        kind, page = found
        context["onward"] = dict(
            kind=kind,
            address=app.builder.get_relative_uri(pagename, page),
            title=env.titles[page].astext(),
        )


def setup(app):
    app.add_directive("chapters-and-questions", ChaptersDirective)
    app.connect("html-page-context", _add_ways)
