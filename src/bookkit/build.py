"""Build the book: what ``jupyter-book build`` does, with the pages in the folder one asks for.

``python -m bookkit SOURCE OUTPUT`` reads ``_config.yml`` and ``_toc.yml`` through Jupyter Book and
builds with Sphinx; a warning is an error, and a reference that leads nowhere is a warning. Doctrees
and the execution cache lie beside OUTPUT, so that the second build is quick.
"""

import argparse
import gc
import hashlib
import sys
from pathlib import Path

import shardlab
from bookkit import words

SOURCES = Path(__file__).resolve().parents[1]
SHOWN = {".py", ".md", ".txt", ".csv", ".json", ".css", ".js", ".html", ".svg"}


def build_book(source, output, quiet=True, overrides=None):
    """Build the book in folder ``source`` into folder ``output``; raise ``BuildFailed`` on any
    error or warning."""
    # Where JupyterLab is installed too, jsonschema compiles 39 grammars for this module when it is
    # imported: a second and a half of every build, for checks of addresses no notebook asks for. It
    # does without where it is not there.
    sys.modules.setdefault("rfc3987_syntax", None)
    from jupyter_book.sphinx import build_sphinx

    gc.collect()  # sphinx_external_toc asks every object for its class: proxies in garbage fail
    source, output = Path(source).resolve(), Path(output).resolve()
    doctrees = output.parent / "doctrees"
    result = build_sphinx(
        source,
        output,
        noconfig=True,
        path_config=source / "_config.yml",
        confoverrides={
            "external_toc_path": str(source / "_toc.yml"),
            "latex_individualpages": False,
            "nitpicky": True,
            **(overrides or {}),
        },
        doctreedir=doctrees,
        warningiserror=True,
        keep_going=True,
        quiet=quiet,
    )
    if result != 0:
        # Sphinx would take the pages it has written for good and not warn again: let it read all of
        # them next time.
        (doctrees / "environment.pickle").unlink(missing_ok=True)
        raise BuildFailed(f"the book in {source} was not built: see the messages above")


class BuildFailed(Exception):
    """Sphinx reported an error, or a warning, which counts as one."""


def sources_digest(*roots):
    """Digest of everything in these folders a page can show or compute with: code, data tables,
    recordings, styles."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix in SHOWN and path.is_file():
                name = path.relative_to(root).as_posix()
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _notice_sources(app, config):
    """Pages are read again, and their cells run again, when ``src/``,
    ``measured/`` or ``workshop/`` changed: both caches look at pages."""
    config.bookkit_sources = sources_digest(
        SOURCES, *(Path(app.srcdir) / name for name in ("measured", "workshop"))
    )
    if not config.nb_execution_cache_path:
        cache = Path(app.outdir).parent / "jupyter_cache" / config.bookkit_sources
        config.nb_execution_cache_path = str(cache)


def _know_the_version(app, config):
    """``{{ version }}`` in a page is the package's."""
    known = {"version": shardlab.__version__}
    config.myst_substitutions = {**config.myst_substitutions, **known}


def _remove_old_pages(app, output):
    """A page that was renamed or taken out would stay in the built book, and be read, linked and
    copied with it."""
    kept = {*app.env.found_docs, "search", "genindex", *app.config.html_additional_pages}
    for page in output.rglob("*.html"):
        name = page.relative_to(output).with_suffix("").as_posix()
        # _static holds what themes and extensions ship
        if name not in kept and not name.startswith("_"):
            page.unlink()


def setup(app):
    from bookkit.cards import after_pages  # loads Sphinx

    app.add_config_value("bookkit_sources", "", "env")
    app.connect("config-inited", _notice_sources)
    app.connect("config-inited", _know_the_version)
    after_pages(app, _remove_old_pages, priority=100)


def main():
    parser = argparse.ArgumentParser(prog="python -m bookkit", description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path, help="folder with _config.yml and _toc.yml")
    parser.add_argument("output", type=Path, help="folder for the pages, for example build/html")
    parser.add_argument("--verbose", action="store_true", help="say what Sphinx is doing")
    arguments = parser.parse_args()
    try:
        build_book(arguments.source, arguments.output, quiet=not arguments.verbose)
    except BuildFailed as error:
        sys.exit(f"{error}")
    print("book:   words in the main line of each chapter")
    print("\n".join(words.report(arguments.source)))
    print(f"The book is in {arguments.output / 'index.html'}")
