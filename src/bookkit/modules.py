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
from html import escape
from pathlib import Path

import rjsmin
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import after_pages
from bookkit.explorer import OF_PARTS, data_of_parts, equations, parts_of
from bookkit.look import STATIC, TEMPLATES
from coursekit.show.card import COPY, explorer_card, foot
from coursekit.show.embed import embedded_explorer
from coursekit.show.explorers import EXPLORERS

FOLDER = "_static/explorers"
PAGE = (TEMPLATES / "explorer.html").read_text(encoding="utf-8")


def module(spec):
    """The text of an explorer's module."""
    parts = [*OF_PARTS, "layouts.css"] * bool(spec.parts)
    more = [STATIC / name for name in (*parts, "why.js")]
    buttons = foot(equations(spec), COPY)
    html = explorer_card(spec, buttons, parts=parts_of(spec), of_parts=data_of_parts(spec))
    return (
        f"// {spec.title}: an explorer of the book Split, Shard, Recompute (MIT).\n"
        f"{rjsmin.jsmin(embedded_explorer(spec, html, *more))}\nexport default {{ render }};\n"
    )


def page(spec):
    """A page that is nothing but the explorer; what stands behind # in its address are
    options: #model=Llama 7B&theme=dark."""
    inside = module(spec).replace("export default", "const explorer =").replace("</", "<\\/")
    return PAGE.format(title=escape(spec.title), module=inside)


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
