"""Offline by construction: a page asks for nothing outside the book, and the book carries only what
a page asks for.

Four things happen here.

1. What the theme loads and this book does not use is taken off the pages: its scripts (menus, side
bars, search box and colour mode are ``static/book.js``) and its icon fonts (``icons.py``).
2. After the build, files in ``_static`` that no page refers to are deleted, the theme's sheets lose
the rules that no page needs, and the book's own files lose comments and white space.
3. plotly figures stored in notebooks, which MyST-NB drops without a word, are written into the
page; the one local
   copy of plotly.js is fetched when the first of them comes near the screen. A stored explorer or
   stepper becomes a sentence.
4. Every page is read once more, and anything it would load from elsewhere is a warning, which stops
the build.
"""

import json
import re
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

import rcssmin
import rjsmin
from docutils import nodes

from bookkit.cards import after_pages, warn
from coursekit.show import embed
from coursekit.show.embed import STORED
from coursekit.show.in_words import PLOTLY

LIVE_IN_THE_LAB = (
    "This control is live in the lab: open the notebook in Jupyter or Colab to move it."
)

OURS = embed.STATIC, Path(__file__).parent / "static"

# Scripts of Sphinx and of the theme that no page needs.
UNUSED_SCRIPTS = {
    "scripts/sphinx-book-theme.js",
    "design-tabs.js",
    "documentation_options.js",
    "doctools.js",
    "sphinx_highlight.js",
}
UNUSED_STYLES = {"styles/theme.css"}
ASKED_FOR = ("present.js", "present.css")  # no page names them: book.js loads them
THEME_STYLES = ("styles/*.css", "sphinx-design.min.css", "mystnb*.css", "pygments.css")

# The theme's rules stand in a cascade layer of their own: whatever book.css says then counts,
# however it is said.
LAYER = "@layer theme{"


# ---------------------------------------------------------------- stored outputs


class OfflineMime:
    """MyST-NB plugin for some kinds of stored output; found through the entry point
    ``myst_nb.mime_renderers``."""

    mime_priority_overrides = [("html", PLOTLY, 1), ("html", STORED, 2)]

    @staticmethod
    def handle_mime(renderer, data, inline):
        """Nodes for a plotly figure or a live card; None for anything else, and in books that do
        not use bookkit."""
        environment = getattr(renderer.renderer, "sphinx_env", None)
        if inline or environment is None or "bookkit_sources" not in environment.config:
            return None
        if data.mime_type == PLOTLY:
            return [nodes.raw("", figure_html(data.content), format="html")]
        if data.mime_type == STORED:
            return [nodes.paragraph("", LIVE_IN_THE_LAB, classes=["needs-kernel"])]
        return None


def figure_html(figure):
    """A place for a stored plotly figure: its data, its height, so that nothing jumps, a sentence
    without scripts."""
    parts = {key: figure[key] for key in ("data", "layout", "config") if key in figure}
    layout = parts.get("layout", {})
    parts["layout"] = {key: value for key, value in layout.items() if key != "template"}
    title = layout.get("title")
    title = (title or {}).get("text") if not isinstance(title, str) else title
    name = " ".join(re.sub(r"<[^>]*>", " ", title or "").split()) or "Figure from the notebook"
    content = json.dumps(parts, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="plotly-figure" role="figure" aria-label="{escape(name, quote=True)}"'
        f' style="min-height: {int(layout.get("height") or 400)}px">'
        f'<script type="application/json">{content}</script>'
        f"<noscript><p>{escape(name)}: an interactive figure, which needs JavaScript. "
        "Its numbers are in the notebook.</p></noscript></div>"
    )


def _has_figures(doctree):
    return doctree is not None and any(
        'class="plotly-figure"' in node.astext() for node in doctree.findall(nodes.raw)
    )


# ---------------------------------------------------------------- what a page loads


def _name(asset):
    return str(getattr(asset, "filename", asset) or "").removeprefix("_static/").split("?")[0]


def _select_assets(app, pagename, templatename, context, doctree):
    """Leave out of a page's lists what it does not use."""
    seen, kept = set(), []
    for script in context.get("script_files", []):
        attributes = getattr(script, "attributes", {})
        name, body = _name(script), attributes.get("body", "")
        unused = (
            name in UNUSED_SCRIPTS
            or body.startswith("DOCUMENTATION_OPTIONS.")
            or (name, body) in seen
        )
        if not unused:
            seen.add((name, body))
            kept.append(script)
    context["script_files"][:] = kept
    if "css_files" in context:
        context["css_files"][:] = [
            style for style in context["css_files"] if _name(style) not in UNUSED_STYLES
        ]


def _add_figure_scripts(app, pagename, templatename, context, doctree):
    if _has_figures(doctree):
        plotly = context["pathto"]("_static/plotly.min.js", 1)
        app.add_js_file(
            "figures.js", loading_method="defer", priority=802, **{"data-plotly": plotly}
        )


def _copy_plotly(app, config):
    """plotly.js out of the installed plotly: exactly the version that understands the stored
    figures. Sphinx warns where it is not there."""
    source = files("plotly") / "package_data" / "plotly.min.js"
    config.html_static_path = [*config.html_static_path, str(source)]


# ---------------------------------------------------------------- after the build


class _References(HTMLParser):
    """Collects what a page refers to: any attribute that could be an address."""

    LOADING = {
        "src": {"script", "img", "iframe", "source", "video", "audio", "embed"},
        "data": {"object"},
        "href": {"image", "use"},
    }

    def __init__(self):
        super().__init__()
        self.addresses, self.loaded = set(), set()

    def handle_starttag(self, tag, attributes):
        attributes = {name: value or "" for name, value in attributes}
        relation = attributes.get("rel", "")
        for name, value in attributes.items():
            self.addresses.add(value)
            loads = tag in self.LOADING.get(name, ()) or (
                tag == "link"
                and name == "href"
                and re.search(r"stylesheet|preload|prefetch|preconnect|icon", relation)
            )
            if loads:
                self.loaded.add(value)
            if name == "srcset":
                self.loaded.update(part.split()[0] for part in value.split(",") if part.strip())
            if name == "style":
                self.loaded |= _css_addresses(value)


def _css_addresses(text):
    found = re.findall(r"""url\(\s*["']?([^"')]+)["']?\s*\)|@import\s+["']([^"']+)["']""", text)
    return {first or second for first, second in found}


def _is_external(address):
    parts = urlsplit(address.strip())
    return bool(parts.netloc) or parts.scheme in {"http", "https", "ftp", "ws", "wss"}


def _local(address, folder):
    """The file an address leads to from a page in ``folder``; None for what is no file."""
    path = urlsplit(address).path if len(address) < 400 else ""
    if not path or _is_external(address):
        return None
    return (folder / unquote(path)).resolve()


def pages_in(output):
    """The pages of the book, without what themes and extensions ship."""
    return [
        path for path in sorted(output.rglob("*.html")) if output / "_static" not in path.parents
    ]


def looked_at(output, cache, look):
    """Page -> what ``look`` finds in its HTML; pages that have not changed since the last build are
    taken from the file ``cache``."""
    known = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    pages = {}
    for path in pages_in(output):
        name, stamp = (
            path.relative_to(output).as_posix(),
            [path.stat().st_mtime_ns, path.stat().st_size],
        )
        pages[name] = known.get(name, {})
        if pages[name].get("stamp") != stamp:
            pages[name] = {"stamp": stamp, "found": look(path.read_text(encoding="utf-8"))}
    cache.write_text(json.dumps(pages), encoding="utf-8")
    return {name: page["found"] for name, page in pages.items()}


def _references(page):
    """The addresses to which a page refers, those that are loaded with it, and the names of classes
    and elements in it."""
    references = _References()
    references.feed(page)
    names = set(" ".join(re.findall(r'\b(?:class|id)="([^"]*)"', page)).split())
    return {
        "addresses": sorted(references.addresses),
        "loaded": sorted(references.loaded),
        "names": sorted(names),
    }


def _warn(file, address):
    said = "a page must not ask for anything outside the book"
    warn(None, "offline", f"{file} would load {address}: {said}")


def _tidy(app, output):
    """Put the theme's style sheets into their layer, delete what nothing refers to, and look for
    addresses outside the book."""
    output = output.resolve()
    static = output / "_static"
    used = {static / name for name in ASKED_FOR}
    ours = [path for folder in OURS for path in folder.glob("*.*s")]  # .css and .js
    scripts = [path for path in ours if path.suffix == ".js"]
    names = set(re.findall(r"[\w-]+", "".join(map(Path.read_text, scripts))))
    pages = looked_at(output, Path(app.doctreedir) / "pages.json", _references)
    for page, references in pages.items():
        folder = (output / page).parent
        names.update(references["names"])
        used.update(_local(address, folder) for address in references["addresses"])
        for address in filter(_is_external, references["loaded"]):
            _warn(page, address)
    for pattern in THEME_STYLES:
        for sheet in static.glob(pattern):
            text = sheet.read_text(encoding="utf-8")
            if not text.startswith(LAYER):  # else it is what an earlier build left
                sheet.write_text(theme_css(text, names), encoding="utf-8")
    for sheet in sorted(static.rglob("*.css")):
        if sheet not in used:
            continue
        for address in sorted(_css_addresses(sheet.read_text(encoding="utf-8"))):
            if _is_external(address):
                _warn(sheet.relative_to(output), address)
            used.add(_local(address, sheet.parent))
    # who reads them finds them, with their comments, in the repository
    for source in ours:
        if static / source.name in used:
            text = source.read_text(encoding="utf-8")
            text = rcssmin.cssmin(text) if source.suffix == ".css" else rjsmin.jsmin(text)
            (static / source.name).write_text(text + "\n", encoding="utf-8")
    folders = {path.parent for path in used if path}  # a licence stays with what it is for
    for path in sorted(static.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in used and not (path.parent in folders and "licen" in path.name.lower()):
            path.unlink()


RULE = re.compile(r"""([^{}'"]+(?:"[^"]*"[^{}'"]*)*)\{(?:[^{}'"]|'[^']*'|"[^"]*")*\}""")
SELECTOR = re.compile(r"(?:[^,(]|\((?:[^()]|\([^()]*\))*\))+")
ASIDE = re.compile(r"\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]")  # what :not() and [] hold
NAME = re.compile(r"[.#]([\w-]+)")


def theme_css(text, names):
    """A style sheet of the theme in a cascade layer of its own: without its fonts, without
    ``!important``, which would win over book.css from inside a layer, and without the selectors
    that ask for a class or an element that no page and no script of the book names."""

    needed = lambda one: names.issuperset(NAME.findall(ASIDE.sub("", one)))

    def kept(rule):
        if rule[1][0].isdigit() or "@" in rule[1]:  # a step of keyframes, a page
            return rule[0]
        shown = ",".join(filter(needed, SELECTOR.findall(rule[1])))
        return shown and shown + rule[0][len(rule[1]) :]

    text = re.sub(r"@font-face\s*\{[^}]*\}|@charset[^;]*;|\s*!important", "", text)
    text = RULE.sub(kept, rcssmin.cssmin(text))
    return f"{LAYER}{re.sub(r'@(?:media|supports)[^{};]*{}', '', text)}}}"


def setup(app):
    # Jupyter Book sets it for the comments extension, which this book does not load.
    app.add_config_value("comments_config", {}, "")
    app.connect("config-inited", _copy_plotly)
    app.connect("html-page-context", _add_figure_scripts, priority=600)
    app.connect("html-page-context", _select_assets, priority=990)
    after_pages(app, _tidy, priority=900)
