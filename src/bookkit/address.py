"""Buttons that lead out of the book, and what the book carries for those who cannot follow them.

``_address.yml`` says where the repository is; where it does not, GitHub's own variables do while
GitHub builds the book. With an address there are buttons for the repository, for an issue about the
page, and for the lab on Colab. Without one there is no dead button: the lab's page says in one
sentence how to run it, and the book carries the shardlab wheel. In both cases the learner's edition
of a lab can be downloaded from the lab's page. It stands in the link itself (a ``data:`` address),
because a browser that reads the book from a disk would show a linked notebook as text.

A chapter names its lab in its front matter: ``lab: labs/01-does-it-fit``. Its header leads to the
lab's page, and to Colab.
"""

import base64
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import yaml
from docutils import nodes
from sphinx.errors import ExtensionError

from bookkit.cards import after_pages, warn
from bookkit.learner import write_learner_edition

DOWNLOADS = "downloads"  # folder of the built book for wheel and learners' notebooks
PROVIDERS = ("github", "gitlab")
COLAB_HOST = "https://github.com/"  # the only one whose notebooks Colab opens


class InvalidAddress(ExtensionError):
    """_address.yml does not say what it should; the message names the value and the rule."""


@dataclass(frozen=True)
class Address:
    """Where the repository is. All empty: nowhere that is known."""

    repository: str = ""
    branch: str = "main"
    learner_branch: str = ""
    provider: str = ""  # "github" or "gitlab": whose pages the buttons lead to
    book: str = ""  # where the book is read on the web

    @property
    def requirement(self) -> str:
        """The requirement by which pip installs shardlab; "" when the repository is unknown."""
        return f"shardlab @ git+{self.repository}@{self.branch}" if self.repository else ""

    def colab(self, notebook_name: str) -> str:
        """Address of a learner's notebook on Colab; "" where Colab cannot open it."""
        if not (self.repository.startswith(COLAB_HOST) and self.learner_branch):
            return ""
        path = self.repository.removeprefix(COLAB_HOST)
        return f"https://colab.research.google.com/github/{path}/blob/{self.learner_branch}/{notebook_name}"


def resolve_address(settings: Mapping[str, str], environment: Mapping[str, str]) -> Address:
    """The address that `settings` (of _address.yml) give, else the one in GitHub's variables, else
    none.

    Raises InvalidAddress for a setting that is unknown or no repository's address.
    """
    unknown = sorted(set(settings) - {"repository", "branch", "learner_branch", "book"})
    if unknown:
        raise InvalidAddress(
            f"_address.yml: {unknown[0]!r} is unknown; it may hold repository, branch,"
            " learner_branch, book"
        )
    book = (settings.get("book") or "").rstrip("/")
    if book and not re.fullmatch(r"https?://[\w.:-]+(/[\w.-]+)*", book):
        raise _invalid("book", book, "it must look like https://you.github.io/your-book")
    repository = settings.get("repository") or ""
    host = urlsplit(repository).hostname or ""
    provider = next((name for name in PROVIDERS if name in host), "")
    if not repository and environment.get("GITHUB_REPOSITORY"):
        server = environment.get("GITHUB_SERVER_URL") or "https://github.com"
        repository, provider = f"{server}/{environment['GITHUB_REPOSITORY']}", "github"
    if not repository:
        return Address(book=book)
    repository = repository.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.:-]+(/[\w.-]+){2,}", repository):
        rule = "it must look like https://github.com/you/your-book"
        raise _invalid("repository", repository, rule)
    if not provider:
        raise _invalid("repository", repository, "its host must be GitHub or GitLab")
    branches = settings.get("branch") or "main", settings.get("learner_branch") or ""
    return Address(repository, *branches, provider, book)


def _invalid(key, value, rule):
    return InvalidAddress(f"_address.yml: {key} is {value!r}; {rule}")


# ---------------------------------------------------------------- what the book carries


def find_wheel(folder: Path) -> Path | None:
    """The one shardlab wheel in `folder`; None if there is none. Raises ExtensionError for
    several."""
    wheels = sorted(folder.glob("shardlab-*.whl"))
    if len(wheels) > 1:
        raise ExtensionError(
            f"{folder} holds {len(wheels)} shardlab wheels; which one should the book carry? make"
            " clean"
        )
    return wheels[0] if wheels else None


def chapter_lab(app, docname: str) -> str:
    """Docname of the lab that a chapter names in its front matter, or ""."""
    lab = app.env.metadata.get(docname, {}).get("lab", "")
    if lab and lab not in app.env.found_docs:
        warn(docname, "lab", f"lab is {lab!r}; there is no such page in the book")
        return ""
    return lab


class Link(NamedTuple):
    """One way to get at a lab."""

    text: str
    address: str
    download: str = ""  # the name under which it is saved, for what is saved


def notebook_name(lab: str) -> str:
    return f"{lab.removeprefix('labs/')}.ipynb"


def lab_links(app, lab: str) -> list[Link]:
    """The ways to run `lab`, addressed from its page: on Colab, where that is possible, and by
    download."""
    name = notebook_name(lab)
    address: Address = app.config.bookkit_address
    notebook = write_learner_edition(
        Path(app.env.doc2path(lab)), Path(app.outdir) / DOWNLOADS / name, address.requirement
    )
    data = base64.b64encode(notebook.encode()).decode()
    links = [Link("Download the notebook", f"data:application/x-ipynb+json;base64,{data}", name)]
    if address.colab(name):
        links.insert(0, Link("Open in Colab", address.colab(name)))
    wheel = app.config.bookkit_wheel
    if wheel:
        up = "../" * lab.count("/")
        links.append(Link("Download shardlab", f"{up}{DOWNLOADS}/{wheel}", wheel))
    else:
        folder = app.config.bookkit_wheel_folder
        warn(lab, "wheel", f"no shardlab wheel in {folder}: make book puts one there")
    return links


# ---------------------------------------------------------------- Sphinx


def _read_settings(app, config):
    """The one place where the file and the hosting service's variables are read; and the wheel's
    name."""
    wheel = find_wheel(Path(app.srcdir, config.bookkit_wheel_folder))
    config.bookkit_wheel = wheel.name if wheel else ""
    path = Path(app.srcdir) / "_address.yml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    address = resolve_address(settings or {}, os.environ)
    config.bookkit_address = address
    if address.repository:
        config.html_theme_options.update(
            repository_url=address.repository,
            repository_branch=address.branch,
            repository_provider=address.provider,
            use_repository_button=True,
            use_issues_button=True,
        )


def _add_lab_menu(app, pagename, templatename, context, doctree):
    """A menu in the header of a chapter that has a lab; on a lab, the look of its buttons."""
    if pagename.startswith("labs/"):
        app.add_css_file("lab.css", priority=810)
    lab = chapter_lab(app, pagename) if doctree is not None else ""
    if lab:
        page = Link("The lab: read it, download it", app.builder.get_relative_uri(pagename, lab))
        colab = app.config.bookkit_address.colab(notebook_name(lab))
        links = [*([Link("Open in Colab", colab)] if colab else []), page]
        look = dict(icon="fas fa-rocket", type="link")
        buttons = [
            dict(look, text=link.text, tooltip=link.text, url=link.address, label=f"lab-link-{n}")
            for n, link in enumerate(links)
        ]
        menu = dict(look, type="group", tooltip="Run the lab", label="lab-menu", buttons=buttons)
        context["header_buttons"].append(menu)


# Where a lab runs, and below it how: with what the page offers for download, and with a repository.
WAYS = Path(__file__).with_name("lab_ways.txt").read_text("utf-8")


def _as_code(text: str) -> str:
    """The text, with its parts between backquotes as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", text)


def _add_lab_paragraph(app, doctree, docname):
    """Under the title of a lab: how to run it."""
    if app.builder.format != "html" or not docname.startswith("labs/"):
        return
    links = lab_links(app, docname)
    anchors = " ".join(
        f'<a class="lab-link" href="{escape(link.address)}"'
        + (f' download="{escape(link.download)}"' if link.download else "")
        + f">{escape(link.text)}</a>"
        for link in links
    )
    ways = re.findall(r"(?m)^(\w.*)\n  (.+)\n  (.+)", WAYS)
    hint = "".join(
        f"<li><b>{where}.</b> {_as_code(escape(how[not links[0].download]))}</li>"
        for where, *how in ways
    )
    hint = (
        f"<details><summary>How to run it</summary><ul>{hint}</ul></details><p>The notebook is the"
        " learner's edition, without the answers that this page shows."
    )
    html = f'<div class="lab-links"><p>{anchors}</p>{hint}</p></div>'
    title = next(doctree.findall(nodes.title), None)
    if title is not None:
        title.parent.insert(title.parent.index(title) + 1, nodes.raw("", html, format="html"))


def _copy_wheel(app, output):
    if app.config.bookkit_wheel:
        wheel = Path(app.srcdir, app.config.bookkit_wheel_folder, app.config.bookkit_wheel)
        target = output / DOWNLOADS
        target.mkdir(exist_ok=True)
        for old in target.glob("*.whl"):
            old.unlink()
        shutil.copy(wheel, target)


def setup(app):
    app.add_config_value("bookkit_address", Address(), "html")
    app.add_config_value("bookkit_wheel_folder", "build/wheel", "html")
    app.add_config_value("bookkit_wheel", "", "html")  # the wheel's name, found in that folder
    app.connect("config-inited", _read_settings, priority=900)
    # after the theme has made the list
    app.connect("html-page-context", _add_lab_menu, priority=700)
    app.connect("doctree-resolved", _add_lab_paragraph)
    after_pages(app, _copy_wheel)
