"""A Markdown twin of each page, `chapters/zero.md` beside `chapters/zero.html`, and `llms.txt`,
which lists the twins by part with a sentence each: the book for programs that read, and for
readers who want plain text.

A twin is written from the doctree of its page, when the page is: formulas are LaTeX, code stands in
fences, tables are Markdown's. What is folded or hidden on the page says so. Of a card with
controls the twin has its title and the link to it. Links to other pages lead to their twins.
"""

import re
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinx_design.dropdown import dropdown_title

from bookkit.described import one_sentence
from bookkit.diffs import source_diff
from bookkit.formulas import code_name, computed, fold, formula_link

SIGNS = {"out": "-", "in": "+", "both": " "}
CARD_TITLE = re.compile(r'class="explorer-title" id="([\w-]+)-title">(.*?)</p>')
DESCRIBED = re.compile(r"<(desc|title)[^>]*>(.*?)</\1>", re.DOTALL)
LABELLED = re.compile(r'class="plotly-figure"[^>]*aria-label="([^"]*)"')
SUMMARY = re.compile(r"<summary>(.*?)</summary>")
LINK = re.compile(r'<a [^>]*href="([^"]+)"[^>]*>(.*?)</a>')
FOLDED = "folded on the page"
SHOWN = (nodes.Inline, nodes.TextElement)
OURS = (computed, code_name, formula_link, fold, source_diff)


def plain(html: str) -> str:
    """The text of a piece of HTML."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def escaped(text: str) -> str:
    """Text in which no sign is Markdown's, on few signs: the twin is read as it is."""
    text = re.sub(r"([\\`*<$])", r"\\\1", text.replace("\N{NO-BREAK SPACE}", " "))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def indented(text: str, first: str, rest: str) -> str:
    """The lines of a block behind the mark of an item or of a quotation."""
    lines = (rest + line if line else rest.rstrip() for line in text.split("\n"))
    return first + "\n".join(lines)[len(rest) :]


class Twin:
    """The Markdown of one page, whose cards have the ids and titles that its HTML gives them."""

    def __init__(self, page: str, cards: list[tuple[str, str]]):
        self.page, self.cards, self.depth = page, iter(cards), 0

    def blocks(self, node) -> str:
        return self.joined(node.children)

    def joined(self, children) -> str:
        return "\n\n".join(filter(None, map(self.block, children)))

    def block(self, node) -> str:
        for kind in type(node).__mro__:
            method = getattr(self, f"block_{kind.__name__}", None)
            if method:
                return method(node)
        if isinstance(node, nodes.Invisible):
            return ""
        if type(node).__module__.startswith("bookkit") and not isinstance(node, OURS):
            return self.card()
        return self.line(node) if isinstance(node, SHOWN) else self.blocks(node)

    def card(self) -> str:
        ident, title = next(self.cards)
        place = f"{Path(self.page).name}.html#{ident}"
        return f"*{escaped(unescape(title))}*: a card with controls, live on [the page]({place})."

    def block_section(self, node) -> str:
        self.depth += 1
        text = self.blocks(node)
        self.depth -= 1
        return text

    def block_title(self, node) -> str:
        said = self.line(node)
        return said and f"{'#' * self.depth} {said}"

    def block_rubric(self, node) -> str:
        return f"**{self.line(node)}**"

    def block_literal_block(self, node) -> str:
        text, language = node.astext().rstrip("\n"), node.get("language", "")
        fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`{3,}", text))])
        return f"{fence}{'' if language in ('none', 'default') else language}\n{text}\n{fence}"

    def block_math_block(self, node) -> str:
        return f"$$\n{node.astext().strip()}\n$$"

    def block_source_diff(self, node) -> str:
        lines = (
            "..." if kind == "gap" else SIGNS[kind] + unescape(re.sub("<[^>]+>", "", line))
            for kind, line in node["lines"]
        )
        return "```diff\n{}\n```".format("\n".join(lines))

    def block_bullet_list(self, node) -> str:
        return "\n".join(indented(self.blocks(item), "- ", "  ") for item in node)

    def block_enumerated_list(self, node) -> str:
        items = enumerate(node, node.get("start", 1))
        return "\n".join(indented(self.blocks(item), f"{n}. ", "   ") for n, item in items)

    def block_definition_list_item(self, node) -> str:
        terms = [self.term(part) for part in node if isinstance(part, nodes.term)]
        said = [self.blocks(part) for part in node if isinstance(part, nodes.definition)]
        return f"**{', '.join(terms)}**\n{indented(chr(10).join(said), ': ', '  ')}"

    def term(self, node) -> str:
        """A word, with its address if it is one of the glossary's."""
        said, name = self.line(node), next(iter(node["ids"]), "")
        return f"[{said}]({Path(self.page).name}.html#{name})" if name else said

    def block_block_quote(self, node) -> str:
        return indented(self.blocks(node), "> ", "> ")

    block_sidebar = block_block_quote

    def block_admonition(self, node) -> str:
        """A box: its label and title in bold, then what it says."""
        head, *rest = node.children
        if isinstance(head, nodes.title):
            return indented(f"**{self.line(head)}**\n\n{self.joined(rest)}", "> ", "> ")
        return self.block_block_quote(node)

    def block_container(self, node) -> str:
        if "answer" in node["classes"]:
            head = "**Answer** (hidden on the page until the reader has made a prediction)"
            return indented(f"{head}\n\n{self.blocks(node)}", "> ", "> ")
        return self.blocks(node)

    def block_dropdown_main(self, node) -> str:
        heads = [part for part in node.children if isinstance(part, dropdown_title)]
        rest = [part for part in node.children if part not in heads]
        words = " ".join(map(self.line, heads)) or "More"
        hidden = "answer, " if "answer" in node["classes"] else ""
        return indented(f"**{words}** ({hidden}{FOLDED})\n\n{self.joined(rest)}", "> ", "> ")

    def block_fold(self, node) -> str:
        head = f"**{plain(node['title'])}** ({FOLDED})"
        return indented(f"{head}\n\n{self.blocks(node)}", "> ", "> ")

    def block_citation(self, node) -> str:
        return f"- {self.blocks(node)}"

    def block_label(self, node) -> str:
        return ""

    def block_table(self, node) -> str:
        caption = next(node.findall(nodes.title), None)
        rows = [[self.cell(entry) for entry in row] for row in node.findall(nodes.row)]
        if next(node.findall(nodes.thead), None) is None:
            rows.insert(0, [""] * len(rows[0]))
        rows.insert(1, [":--"] * len(rows[0]))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        head = [] if caption is None else [f"**{self.line(caption)}**", ""]
        return "\n".join(head + lines)

    def cell(self, entry) -> str:
        """The text of a cell, whose bars are escaped."""
        text = self.blocks(entry).replace(r"\|", r"\Vert")
        return " ".join(text.replace("|", r"\|").split())

    def block_image(self, node) -> str:
        return self.inline_image(node)

    def block_raw(self, node) -> str:
        """A drawing says in words what it shows; a fold says so; of the rest the text stays."""
        html = node.astext()
        if node.get("format") != "html" or 'class="box-mark"' in html:
            return ""
        if labelled := LABELLED.search(html):
            return f"*Drawing, live on the page: {escaped(plain(labelled[1]))}*"
        if html.lstrip().startswith("<svg"):
            said = dict(DESCRIBED.findall(html))
            return f"*Drawing: {escaped(plain(said.get('desc') or said.get('title', '')))}*"
        if html.startswith("<details"):
            return f"**{escaped(plain(SUMMARY.search(html)[1]))}** ({FOLDED})"
        links = LINK.findall(html)
        if not links:
            return escaped(plain(html))
        return ", ".join(f"[{escaped(plain(text))}]({self.place(where)})" for where, text in links)

    def place(self, address: str) -> str:
        """Where a link leads: to a page's twin; to the one address of a word of the glossary; to
        this page for what is a file within it."""
        parts = urlsplit(address)
        if parts.scheme == "data":
            return f"{Path(self.page).name}.html"
        inside = not (parts.scheme or parts.netloc) and parts.path.endswith(".html")
        if inside and not parts.fragment.startswith("term-"):
            return parts.path.removesuffix(".html") + ".md"
        return address

    def line(self, node) -> str:
        """The text of a paragraph, of a title or of what stands within one."""
        return "".join(map(self.inline, node.children)).strip()

    def inline(self, node) -> str:
        for kind in type(node).__mro__:
            method = getattr(self, f"inline_{kind.__name__}", None)
            if method:
                return method(node)
        return "".join(map(self.inline, node.children))

    def inline_Text(self, node) -> str:
        return escaped(re.sub(r"\s*\n\s*", " ", node.astext()))

    def inline_raw(self, node) -> str:
        return ""

    def inline_strong(self, node) -> str:
        return f"**{self.line(node)}**"

    def inline_emphasis(self, node) -> str:
        return f"*{self.line(node)}*"

    def inline_literal(self, node) -> str:
        text = node.astext().replace("\N{NO-BREAK SPACE}", " ")
        return f"`` {text} ``" if "`" in text else f"`{text}`"

    def inline_math(self, node) -> str:
        return f"${node.astext().strip()}$"

    def inline_image(self, node) -> str:
        return f"![{escaped(node.get('alt', ''))}]({node['uri']})"

    def inline_reference(self, node) -> str:
        place, text = node.get("refuri", ""), "".join(map(self.inline, node.children))
        if not place or place.startswith("#"):  # on this page, where Markdown has no places
            return text
        return f"[{text}]({self.place(place)})"


# --- in a Sphinx build ----------------------------------------------------------------------------


def _write_twin(app, pagename, templatename, context, doctree):
    if doctree is None or app.builder.format != "html":
        return
    title = " ".join(plain(str(context.get("title", ""))).split())
    twin = Twin(pagename, CARD_TITLE.findall(context["body"]))
    name = Path(pagename).name
    head = f"---\ntitle: {title}\ndescription: {one_sentence(app.env, pagename, doctree)}\n"
    path = Path(app.outdir) / f"{pagename}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"{head}page: {name}.html\n---\n\n{twin.blocks(doctree)}\n"
    path.write_text(text, encoding="utf-8")
    context["bookkit_twin"] = f"{name}.md"


def _pages(site_map, name, part="") -> list[tuple[str, str]]:
    """The pages below one, in the order of the contents, each with the caption of its part."""
    found = []
    for tree in site_map[name].subtrees:
        part = tree.caption or part
        for page in map(str, tree.items):
            found += [(part, page), *_pages(site_map, page, part)]
    return found


def listed(output: Path, root: str, pages: list[tuple[str, str]], book: str) -> str:
    """The text of llms.txt, from the heads of the twins."""

    def head(page):
        lines = (output / f"{page}.md").read_text("utf-8").split("\n", 3)[1:3]
        return [line.partition(": ")[2] for line in lines]

    lines, last = [f"# {book}", "", f"> {head(root)[1]}"], None
    for part, page in pages:
        if part != last:
            lines += ["", f"## {part}", ""]
            last = part
        title, said = head(page)
        lines.append(f"- [{title}]({page}.md): {said}")
    return "\n".join([*lines, ""])


def _write_list(app, exception):
    """llms.txt; twins of pages that are no more go."""
    if exception or app.builder.format != "html":
        return
    output, root = Path(app.outdir), app.config.root_doc
    for old in output.rglob("*.md"):
        name = old.relative_to(output).with_suffix("").as_posix()
        if name not in app.env.found_docs and not name.startswith("_"):
            old.unlink()
    site_map = getattr(app.env, "external_site_map", None)
    if site_map is not None:
        text = listed(output, root, _pages(site_map, root), app.config.html_title)
        (output / "llms.txt").write_text(text, encoding="utf-8")


def setup(app):
    app.connect("html-page-context", _write_twin)
    app.connect("build-finished", _write_list)
