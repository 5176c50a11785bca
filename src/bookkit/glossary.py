"""Words with a definition: a ``{term}`` links to the glossary and shows the definition on hover.

Sphinx makes the link. What it lacks is the text, which is added here as the link's title: a tooltip
of the browser, for which no script is needed. Read aloud, it is the link's description.
"""

import re
from pathlib import Path

from docutils import nodes

from bookkit import words

PAGE = "chapters/glossary"
LONGEST = 300  # characters that a tooltip shows


def definitions(page: str) -> dict[str, str]:
    """Term -> its definition as plain text, out of the ``glossary`` directives of a page."""
    found = {}
    for block in re.findall(r"^```\{glossary\}\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for entry in re.split(r"\n\s*\n", block.strip("\n")):
            term, _, text = entry.partition("\n")
            indents = {len(line) - len(line.lstrip()) for line in text.splitlines()}
            if len(indents) > 1:  # Sphinx would cut as many letters as the first line is indented
                raise ValueError(f"{PAGE}.md: {term}: indent all lines of a definition equally.")
            # code is said as it is: its underscores are not emphasis
            text = re.sub(r"(?<!\})`([^`]+)`", lambda code: code[1].replace("_", "\0"), text)
            found[term.strip()] = " ".join(words.plain(text).split()).replace("\0", "_")
    return found


def _explain(app, doctree, page):
    """Give each link to a term its definition."""
    path = Path(app.srcdir) / f"{PAGE}.md"
    known = definitions(path.read_text("utf-8")) if path.exists() else {}
    anchors = {nodes.make_id(f"term-{term}"): text for term, text in known.items()}
    for link in doctree.findall(nodes.reference):
        inside = next(iter(link.findall(nodes.inline)), None)
        if inside is None or "std-term" not in inside["classes"]:
            continue
        anchor = link.get("refid") or link.get("refuri", "").rpartition("#")[2]
        text = anchors.get(nodes.make_id(anchor), "")
        if text:
            link["classes"].append("term")
            link["reftitle"] = text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def setup(app):
    app.connect("doctree-resolved", _explain)
