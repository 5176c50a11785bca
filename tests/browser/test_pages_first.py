"""Every second page, from the first on."""

import re
from urllib.parse import unquote, urljoin, urlsplit

from every_page import *  # noqa: F403

COLOURS = "dark"
SHARE = slice(0, None, 2)

# Files no page loads or links to, each with the reason for which the book carries it.
CARRIED = {
    "objects.inv": "other books made with Sphinx refer to this one through it",
    ".buildinfo": "Sphinx's own note, for the next build",
    "present.js": "book.js loads it when somebody shows a thing on the whole screen",
    "present.css": "the same",
    "llms.txt": "an assistant asks for it at the book's address",
    ".ipynb": (
        "a learner's notebook: the page holds it in the link itself, Colab opens this file once it"
        " is published"
    ),
    "-LICENSE.txt": "a font's licence has to lie beside the font",
    ".LICENSE.txt": "a script's licence, as the theme ships it",
}


def test_the_book_carries_nothing_it_does_not_use(visits, paths, book_html, homes):
    """Files that this share of the pages loads, or that any page names.

    Must catch: the theme's icon fonts, a style sheet that no page loads, a picture nobody shows."""
    addresses = {address for visit in visits.values() for address in visit.watch.loaded}
    for path in paths:
        here, text = f"{homes['file']}/{path}", (book_html / path).read_text(encoding="utf-8")
        named = re.findall(r'(?:href|src|data-[a-z]+)="([^"]+)"', text)
        addresses |= {urljoin(here, name) for name in named}
    used = {
        unquote(urlsplit(address).path).removeprefix(urlsplit(homes["file"]).path + "/")
        for address in addresses
    }
    carried = {
        path.relative_to(book_html).as_posix() for path in book_html.rglob("*") if path.is_file()
    }
    assert (
        sorted(name for name in carried - used - set(paths) if not name.endswith(tuple(CARRIED)))
        == []
    )
