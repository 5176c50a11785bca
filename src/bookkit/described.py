"""The title and the sentence or two that others show of a page that somebody links to, as
``description`` and Open Graph tags.

The description is the question in a chapter's front matter and the first paragraph of the page.
``og:url`` is written where `_address.yml` says at which address the book is read. A page asks for
nothing because of these tags: others read them.

``llms.txt`` lists the pages by part, each with the first sentence of its description, for programs
that read.
"""

import re
from html import escape, unescape

from docutils import nodes
from markupsafe import Markup

from bookkit.cards import after_pages

TAG = re.compile(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"/>')
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


def _pages(site_map, name, part=""):
    """(caption of its part, page) of the pages below one, in the order of the contents."""
    for tree in site_map[name].subtrees:
        part = tree.caption or part
        for page in map(str, tree.items):
            yield part, page
            yield from _pages(site_map, page, part)


def listed(output, root, pages, book, metadata) -> str:
    """The text of llms.txt, from the questions of the pages and the descriptions that they
    carry."""

    def said(page):
        tags = re.findall(TAG, (output / f"{page}.html").read_text("utf-8"))
        found = {name: unescape(what) for name, what in tags}
        question = metadata.get(page, {}).get("question", "")
        first = re.match(r"\S.*?[.?!](?=\s|$)", found["description"])
        return found["og:title"], question or (first[0] if first else found["description"])

    lines, last = [f"# {book}", "", f"> {said(root)[1]}"], None
    for part, page in pages:
        if part != last:
            lines += ["", f"## {part}", ""]
            last = part
        title, sentence = said(page)
        lines.append(f"- [{title}]({page}.html): {sentence}")
    return "\n".join([*lines, ""])


def _write_list(app, output):
    root = app.config.root_doc
    if (site_map := getattr(app.env, "external_site_map", None)) is None:
        return
    text = listed(output, root, _pages(site_map, root), app.config.html_title, app.env.metadata)
    (output / "llms.txt").write_text(text, encoding="utf-8")


def setup(app):
    app.connect("html-page-context", _describe)
    after_pages(app, _write_list)
