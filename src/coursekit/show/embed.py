"""An explorer as one script with its code, style and data inside, which asks the network for
nothing: in a page that is not the book's (bookkit/modules.py) and in a notebook (widgets.py). Each
rendering has a shadow root, so that no style or name meets another's."""

import json
import re
from pathlib import Path

from .explorer_data import functions_of
from .palette import palette_css

STATIC = Path(__file__).parent / "static"
REM_PX = 16  # a page around may have made its own of it
GLOBAL = "window.BOOK = window.BOOK || {};"  # how scripts of a page find one another

DRAWN_BY = dict(  # kind of picture -> its script, in the order in which scripts are loaded
    memory="pictures.js",
    timeline="timeline.js",
    time="timeline.js",
    curves="curves.js",
    streams="streams.js",
    schedule="schedules.js",
)


def drawing_scripts(specs):
    """The scripts that draw the pictures of these explorers."""
    kinds = {picture.kind for spec in specs for picture in spec.pictures}
    return list(dict.fromkeys(script for kind, script in DRAWN_BY.items() if kind in kinds))


def embedded(spec, card, *more):
    """An explorer's code, ending in `render` of static/embed.js, with its card() inside; `more` are
    paths of scripts and style sheets besides."""
    names = ["formulas.js", "svg.js", *drawing_scripts([spec]), "explorer.js"]
    files = [*(STATIC / name for name in names), *more]
    code = "\n".join(text_in(path).replace(GLOBAL, "") for path in files if path.suffix == ".js")
    sheets = [path for path in more if path.suffix == ".css"]
    html = f'<div class="bd-article">{card.strip()}</div>'
    constants = [("NAME", spec.name), ("CARD", html), ("SHEET", style(*sheets))]
    return "\n".join(
        [
            *(
                f"const {name} = {json.dumps(text, ensure_ascii=False)};"
                for name, text in constants
            ),
            "const BOOK = {};",
            code,
            functions_of(spec),
            text_in(STATIC / "embed.js"),
        ]
    )


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
