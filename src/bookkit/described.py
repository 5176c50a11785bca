"""The title and the sentence or two that others show of a page that somebody links to, as
``description`` and Open Graph tags.

The description is the question in a chapter's front matter and the first paragraph of the page.
``og:url`` is written where `_address.yml` says at which address the book is read. A page asks for
nothing because of these tags: others read them.
"""

import re
from html import escape

from docutils import nodes
from markupsafe import Markup

MOST = 220  # letters; search engines show about 160


def first_sentences(doctree) -> str:
    """The first paragraph of a page that is text: whole sentences without formulas, as many as
    there is room for."""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section) or paragraph.astext().startswith("Time"):
            continue
        sentences = re.findall(r"\S.*?[.?!](?=\s|$)", " ".join(paragraph.astext().split()))
        said = ""
        for sentence in sentences:
            if "\\" in sentence or said and len(said) + len(sentence) >= MOST:
                break
            said = f"{said} {sentence}".strip()
        if said:
            return said
    return ""


def one_sentence(env, pagename, doctree) -> str:
    """The question of a page, else its first sentence, else its title."""
    question = env.metadata.get(pagename, {}).get("question", "")
    first = re.match(r"\S.*?[.?!](?=\s|$)", first_sentences(doctree))
    title = env.titles[pagename].astext()
    return question or (first[0] if first else f"{title}.")


def _describe(app, pagename, templatename, context, doctree):
    book = context["docstitle"]
    title = re.sub("<[^>]+>", "", str(context.get("title") or pagename.capitalize()))
    question = app.env.metadata.get(pagename, {}).get("question", "")
    first = first_sentences(doctree) if doctree is not None else ""
    said = f"{question} {first}".strip() or f"{title}: a page of {book}."
    properties = {
        "title": title,
        "description": said,
        "type": "website" if pagename == app.config.root_doc else "article",
        "site_name": book,
    }
    home = app.config.bookkit_address.book
    if home:
        properties["url"] = f"{home}/{app.builder.get_target_uri(pagename)}"
    lines = [f'<meta name="description" content="{escape(said)}"/>'] + [
        f'<meta property="og:{name}" content="{escape(what, quote=True)}"/>'
        for name, what in properties.items()
    ]
    context["bookkit_described"] = Markup("\n  ".join(lines))


def setup(app):
    app.connect("html-page-context", _describe)
