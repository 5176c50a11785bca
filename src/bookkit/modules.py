"""The explorers for pages that are not the book's: each one an ES module with code, style and data
inside, which asks the network for nothing.

``python -m bookkit.modules FOLDER`` writes two files of each explorer:

- ``NAME.js`` has anywidget's interface, ``export default { render({ model, el, options }) }``: for
  a page of a teacher's own, for Jupyter (anywidget), for MyST;
- ``NAME.html`` is a page with the module inside: browsers import no module from a file, and a
  learning platform shows a page in a frame.

The built book carries the modules in ``_static/explorers``; ``{explorer-modules}`` lists them.
"""

import argparse
import json
import re
from html import escape
from pathlib import Path

import rcssmin
import rjsmin
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import FULL_SCREEN, after_pages
from bookkit.explorer import card, drawing_scripts
from bookkit.explorer_data import functions_of
from bookkit.look import STATIC, TEMPLATES, palette_css
from coursekit.show.explorers import EXPLORERS

FOLDER = "_static/explorers"
REM_PX = 16  # a page around may have made its own of it
GLOBAL = "window.BOOK = window.BOOK || {};"  # how scripts of a page find one another
PAGE = (TEMPLATES / "explorer.html").read_text(encoding="utf-8")


def module(spec):
    """The text of an explorer's module."""
    scripts = ["formulas.js", "svg.js", *drawing_scripts([spec]), "explorer.js", "why.js"]
    code = "\n".join(_read(name).replace(GLOBAL, "") for name in scripts)
    html = re.sub(r"<script>.*?</script>\n", "", card(spec), flags=re.DOTALL).replace(
        FULL_SCREEN, ""
    )
    html = f'<div class="bd-article">{html.replace("explorer wide", "explorer", 1).strip()}</div>'
    constants = [("NAME", spec.name), ("CARD", html), ("SHEET", style())]
    return (
        f"// {spec.title}: an explorer of the book Split, Shard, Recompute (MIT).\n"
        + "".join(
            f"const {name} = {json.dumps(value, ensure_ascii=False)};\n"
            for name, value in constants
        )
        + rjsmin.jsmin(f"const BOOK = {{}};\n{code}\n{functions_of(spec)}\n{_read('embed.js')}")
        + "\n"
    )


def page(spec):
    """A page that is nothing but the explorer; what stands behind # in its address are
    options: #model=Llama 7B&theme=dark."""
    inside = module(spec).replace("export default", "const explorer =").replace("</", "<\\/")
    return PAGE.format(title=escape(spec.title), module=inside)


def style():
    """The style sheet of a card in a shadow root."""
    variables = re.findall(r"^(?::root|html\[.*?\]) \{.*?^\}", _read("book.css"), re.M | re.S)
    text = "\n".join([*variables, palette_css(), *map(_read, ("explorer.css", "layouts.css"))])
    text = re.sub(r"^html\[data-theme=(\W?)dark\1\]", ":host([data-theme=dark])", text, flags=re.M)
    text = text.replace(":root {", ":host {") + _read("embed.css")
    text = re.sub(r"(\d*\.?\d+)rem\b", lambda rem: f"{float(rem[1]) * REM_PX:g}px", text)
    return rcssmin.cssmin(by_container(text))


def by_container(css):
    """Rules for widths of the screen as rules for the width of the place where a card stands."""

    def turned(found):
        conditions = found[1].strip().split(" and ")
        widths = " and ".join(one for one in conditions if "-width" in one)
        others = " and ".join(one for one in conditions if "-width" not in one)
        heads = [f"@media {others} {{"] * bool(others) + [f"@container {widths} {{"] * bool(widths)
        return "\n".join(heads) + found[2] + "}" * len(heads)

    return re.sub(r"@media ([^{]+)\{((?:[^{}]|\{[^{}]*\})*)\}", turned, css)


def _read(name):
    return (STATIC / name).read_text(encoding="utf-8")


ENDINGS = {module: ".js", page: ".html"}


def export(folder, *kinds):
    """Write a file of each kind for each explorer to a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in EXPLORERS.items():
        for kind in kinds:
            (folder / f"{name}{ENDINGS[kind]}").write_text(kind(spec), encoding="utf-8")


# --- in a Sphinx build ----------------------------------------------------------------------------


class ExplorerModulesDirective(SphinxDirective):
    """``{explorer-modules}``: a list of all explorers with their modules."""

    def run(self):
        up = "../" * self.env.docname.count("/")
        items = "".join(
            f'<li><p><a href="{up}{FOLDER}/{name}.js" download>{name}.js</a> '
            f"{escape(spec.title)}</p></li>"
            for name, spec in sorted(EXPLORERS.items())
        )
        return [nodes.raw("", f'<ul class="simple">{items}</ul>', format="html")]


def write(app, output):
    """Write the modules of a book of which a page names one."""
    if any(FOLDER in page.read_text(encoding="utf-8") for page in output.rglob("*.html")):
        export(output / FOLDER, module)


def setup(app):
    app.add_directive("explorer-modules", ExplorerModulesDirective)
    after_pages(app, write, priority=800)  # offline.py deletes what no page names


def main():
    parser = argparse.ArgumentParser(prog="python -m bookkit.modules", description=__doc__)
    parser.add_argument("folder", help="where the modules and pages are written")
    export(parser.parse_args().folder, module, page)


if __name__ == "__main__":
    main()
