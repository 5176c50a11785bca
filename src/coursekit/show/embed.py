"""A card as one script with its code, style and data inside, which asks the network for nothing: in
a page that is not the book's (bookkit/modules.py) and in a notebook (LiveOutput). Each rendering
has a shadow root, so that no style or name meets another's."""

import json
import re
from html import escape
from pathlib import Path
from uuid import uuid4

from .explorer_data import functions_of
from .palette import palette_css

STATIC = Path(__file__).parent / "static"
REM_PX = 16  # a page around may have made its own of it
GLOBAL = "window.BOOK = window.BOOK || {};"  # how scripts of a page find one another
STORED = "application/vnd.shardlab.explorer+json"  # in a stored lab, without the HTML
A_LINE = 110  # letters of the text beside it


def drawing_scripts(specs):
    """The scripts that draw the pictures of these explorers."""
    return sorted({picture.script for spec in specs for picture in spec.pictures})


class LiveOutput:
    """A card that a cell shows: it needs no network and no kernel, so it moves in JupyterLab, VS
    Code, Colab and Kaggle, also when the kernel has stopped, and in a lab exported as HTML. It is
    no frame: its height is its content's, and its colours follow the notebook's. A front end that
    runs no script shows `title` and `sentence`; `code()` of a subclass is what embedded() makes."""

    def __init__(self, name, title):
        self.name, self.title = name, title

    def html(self):
        """The card, for any page."""
        place, code = f"card-{uuid4().hex}", self.code()
        return (
            f'<div id="{place}"><p><b>{escape(self.title)}</b> {escape(self.sentence)}</p></div>\n'
            "<script>(function () {\n" + code.replace("</", "<\\/") + "\n"
            f"""for (const words of document.querySelectorAll("[id='{place}'] > p")) {{"""
            " render({ el: words.parentNode }); words.remove(); }\n})();</script>"
        )

    def _repr_mimebundle_(self, **asked):
        text = repr(self)
        text = text if len(text) <= A_LINE else f"{text[:A_LINE]}…"
        stored = {STORED: {"name": self.name}, "text/plain": text}
        return stored | {"text/html": self.html()}

    def __repr__(self):
        return f"{self.title} {self.sentence}"


def embedded(card, files, begin):
    """The code of a card, ending in `render` of static/embed.js, with the HTML inside. `files` are
    paths of scripts and of style sheets beside explorer.css; `begin` is JavaScript that defines
    begin(root, options)."""
    code = "\n".join(text_in(path).replace(GLOBAL, "") for path in files if path.suffix == ".js")
    html = f'<div class="bd-article">{card.strip()}</div>'
    sheet = style(*(path for path in files if path.suffix == ".css"))
    return "\n".join(
        [
            f"const CARD = {json.dumps(html, ensure_ascii=False)};",
            f"const SHEET = {json.dumps(sheet, ensure_ascii=False)};",
            "const BOOK = {};",
            code,
            begin,
            text_in(STATIC / "embed.js"),
        ]
    )


def embedded_explorer(spec, card, *more):
    """The code of an explorer with its card(); `more` are paths of files besides."""
    names = ["formulas.js", "svg.js", *drawing_scripts([spec]), "explorer.js"]
    files = [*(STATIC / name for name in names), *more]
    return embedded(card, files, functions_of(spec) + "\n" + text_in(STATIC / "begin.js"))


def style(*sheets):
    """The style sheet of a card in a shadow root."""
    own = [STATIC / name for name in ("page.css", "explorer.css")]
    text = "\n".join([text_in(own[0]), palette_css(), *map(text_in, [own[1], *sheets])])
    text = re.sub(r"^html\[data-theme=(\W?)dark\1\]", ":host([data-theme=dark])", text, flags=re.M)
    text = text.replace(":root {", ":host {") + text_in(STATIC / "embed.css")
    text = re.sub(r"(\d*\.?\d+)rem\b", lambda rem: f"{float(rem[1]) * REM_PX:g}px", text)
    text = by_container(re.sub(r"/\*.*?\*/", "", text, flags=re.S))
    return re.sub(r"\s*([{};])\s*", r"\1", text).strip()


def by_container(css):
    """Rules for widths of the screen as rules for the width of the place where a card stands."""

    def turned(found):
        conditions = found[1].strip().split(" and ")
        widths = " and ".join(one for one in conditions if "-width" in one)
        others = " and ".join(one for one in conditions if "-width" not in one)
        heads = [f"@media {others} {{"] * bool(others) + [f"@container {widths} {{"] * bool(widths)
        return "\n".join(heads) + found[2] + "}" * len(heads)

    return re.sub(r"@media ([^{]+)\{((?:[^{}]|\{[^{}]*\})*)\}", turned, css)


def text_in(path):
    return path.read_text(encoding="utf-8")
