"""Small books, built by Sphinx with a few of bookkit's parts, or with all that the real one has."""

import re
import zipfile
from functools import cache

from pages import ROOT

WHEEL = "shardlab-9.9.9-py3-none-any.whl"
OF_FORMULAS = ("mathml", "explorer", "formulas", "formula_sheet")


@cache
def compile_templates_once():
    """Each build compiles the theme's templates anew, which takes most of the time of a small
    book."""
    from jinja2 import Environment

    compile_it, compiled = Environment.compile, {}

    def remembered(self, source, name=None, filename=None, raw=False, defer_init=False):
        what = (tuple(self.extensions), source, name, filename, raw, defer_init)
        if not isinstance(source, str):
            return compile_it(self, source, name, filename, raw, defer_init)
        if what not in compiled:
            compiled[what] = compile_it(self, source, name, filename, raw, defer_init)
        return compiled[what]

    Environment.compile = remembered


def builder(folder, *parts, fresh=True, **settings):
    """build(name=text, ...) builds these pages under `folder` with these parts of bookkit; returns
    (name -> HTML, warnings). A name with a dot is that of a file beside the pages; a book that is
    not `fresh` goes on from the last build."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    compile_templates_once()
    given = {
        "extensions": ["myst_parser", *(f"bookkit.{part}" for part in parts)],
        "root_doc": "index",
        "nitpicky": True,
        "suppress_warnings": ["toc.not_included"],
        "html_theme": "basic",
        "myst_enable_extensions": ["dollarmath", "colon_fence"],
    }
    if "mathml" in parts:
        given["html_math_renderer"] = "mathml"
    given |= settings
    given["extensions"] += given.pop("more_extensions", [])

    def build_it(**pages):
        source, output = folder / "source", folder / "html"
        for name, text in pages.items():
            path = source / (name if "." in name else f"{name}.md")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        warnings = folder / "warnings"
        with open(warnings, "w+", encoding="utf-8") as stream, docutils_namespace():
            places = source, None, output, folder / "doctrees", "html", given
            Sphinx(*places, status=None, warning=stream, freshenv=fresh).build()
        lines = re.sub(r"\x1b\[[\d;]*m", "", warnings.read_text(encoding="utf-8")).splitlines()
        # Sphinx says so of the second application in one process
        said = [line for line in lines if "already registered" not in line]
        names = [name for name in pages if "." not in name]
        html = {name: (output / f"{name}.html").read_text(encoding="utf-8") for name in names}
        return html, "\n".join(said)

    return build_it


def real_book(folder, **files):
    """Sources of a book with the real one's configuration and a wheel: texts by the names of their
    files, of pages without `.md`. Returns the folder."""
    pages = {"index": "# A tiny book\n\nRead on.\n", **files}
    for name, text in pages.items():
        path = folder / (name if "." in name else f"{name}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (ROOT / "_config.yml", *ROOT.glob("*.bib")):
        (folder / path.name).write_bytes(path.read_bytes())
    others = (".yml", ".json", "index")
    listed = [name.removesuffix(".ipynb") for name in files if not name.endswith(others)]
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nparts:\n- caption: Chapters\n  chapters:\n"
        + "".join(f"  - file: {name}\n" for name in listed)
    )
    (folder / "build" / "wheel").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "build" / "wheel" / WHEEL, "w") as wheel:
        wheel.writestr("shardlab/__init__.py", "")
    return folder
