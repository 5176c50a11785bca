"""The way from page to page: the question of each chapter, said once at the top of its page, is
on the front page and beside *previous* and *next*; a chapter ends with the way to its lab, and a
lab with the way back.

    ---
    question: How do eight GPUs add up their gradients?
    lab: labs/04-collectives
    ---

    | [Collectives](chapters/collectives.md) | {question}`collectives` |

The role's text is the name of a page in ``chapters/``.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

logger = logging.getLogger(__name__)

FRONT_MATTER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)


def question_of(page: Path) -> str:
    """The question at the top of a page, or nothing."""
    found = FRONT_MATTER.match(page.read_text("utf-8")) if page.exists() else None
    return (yaml.safe_load(found[1]) or {}).get("question", "") if found else ""


class QuestionRole(SphinxRole):
    def run(self):
        page = Path(self.env.srcdir, "chapters", f"{self.text}.md")
        question = question_of(page)
        if not question:
            logger.warning(
                "question: %s asks none: write one into its front matter.",
                page.name,
                location=self.get_location(),
                type="bookkit",
                subtype="question",
            )
        self.env.note_dependency(str(page))
        return [nodes.Text(question)], []


def labs_of_chapters(env):
    """The lab's page -> its chapter's."""
    found = ((env.metadata.get(page, {}).get("lab"), page) for page in sorted(env.found_docs))
    return {lab: page for lab, page in found if lab in env.found_docs}


def summary(env, docname) -> str:
    """What a page asks; of a lab, what its chapter asks."""
    chapter = labs_of_chapters(env).get(docname, docname)
    return str(env.metadata.get(chapter, {}).get("question", ""))


def onward(env, docname):
    """From a chapter to its lab and back: (what the other page is, the page), or None."""
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
    app.add_role("question", QuestionRole())
    app.connect("html-page-context", _add_ways)
