"""The whole book as one PDF, from the built pages: make pdf

python tools/pdf.py build/html build/split-shard-recompute.pdf

All pages become one document in the order of the contents: each id is prefixed with its page, and
each link to a page of the book leads into the document, so that Chromium's outline, tags and links
hold across pages. A link to the outside prints its address.
"""

import re
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

REFERENCES = ("for", "aria-labelledby", "aria-describedby", "headers")
STYLE = """
.pdf-page { break-before: page; }
.pdf-page a.external::after {
  content: " (" attr(href) ")"; font-size: 0.8em; overflow-wrap: anywhere;
}
.headerlink, .lab-links, .present-open, .copybtn, .predict-room { display: none !important; }
"""

ALL_FACES = """() => Promise.allSettled([...document.fonts].map(face => face.load()))
  .then(() => null)"""


def pages(html: Path) -> list[str]:
    """The pages of the built book in the order of the contents: each names the next."""
    found = ["index.html"]
    while True:
        soup = BeautifulSoup((html / found[-1]).read_text("utf-8"), "html.parser")
        link = soup.select_one("link[rel=next], a.right-next")
        if link is None:
            return found
        place = (html / found[-1]).parent / link["href"].partition("#")[0]
        found.append(place.resolve().relative_to(html).as_posix())


def key(path: str) -> str:
    return re.sub(r"\W+", "-", path.removesuffix(".html"))


def joined(html: Path) -> str:
    """One HTML document with the articles of all pages."""
    paths = pages(html)
    sheets: dict[str, None] = {}
    articles = []
    for path in paths:
        soup = BeautifulSoup((html / path).read_text("utf-8"), "html.parser")
        here = Path(path).parent
        for link in soup.select("head link[rel=stylesheet]"):
            name = (html / here / link["href"].partition("?")[0]).resolve().relative_to(html)
            sheets[f'<link rel="stylesheet" href="{name}">'] = None
        article = soup.select_one("article.bd-article")
        for script in article.select("script"):
            script.decompose()
        prefix_all(article, path, html, set(paths))
        articles.append(
            f'<article class="bd-article pdf-page" id="{key(path)}">{article}</article>'
        )
    return (
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>Split, Shard, Recompute</title>{''.join(sheets)}<style>{faces(html)}"
        f"{STYLE}</style></head><body>{''.join(articles)}</body></html>"
    )


def faces(html: Path) -> str:
    """The book's fonts once more, as ones to wait for: a page on a screen goes without a face that
    comes late, and a sheet of paper is printed once."""
    css = html / "_static" / "book.css"
    found = re.findall(r"@font-face\s*\{[^}]*\}", css.read_text("utf-8"))
    late = [face for face in found if "optional" in face]
    text = "".join(late).replace("optional", "block")
    return re.sub(r"""url\((["']?)(?!data:)""", r"url(\1_static/", text)


def prefix_all(article, path: str, html: Path, paths: set[str]) -> None:
    """Make the ids of an article, and all that refers to them, the document's, in place."""
    page = key(path)
    for node in article.find_all(True):
        if node.get("id"):
            node["id"] = f"{page}--{node['id']}"
        for name in REFERENCES:
            if name in node.attrs:
                said = node[name] if isinstance(node[name], str) else " ".join(node[name])
                node[name] = " ".join(f"{page}--{each}" for each in said.split())
        for name, value in list(node.attrs.items()):
            if isinstance(value, str) and "url(#" in value:
                node[name] = value.replace("url(#", f"url(#{page}--")
        if node.get("src") and not urlsplit(node["src"]).scheme:
            source = (html / Path(path).parent / node["src"]).resolve()
            node["src"] = str(source.relative_to(html)) if source.is_file() else node["src"]
        if node.get("href"):
            node["href"] = target(node["href"], path, html, paths)


def target(href: str, path: str, html: Path, paths: set[str]) -> str:
    """A link of a page as a link of the document; outside links stay."""
    parts = urlsplit(href)
    if parts.scheme or parts.netloc:
        return href
    if not parts.path:
        return f"#{key(path)}--{parts.fragment}" if parts.fragment else f"#{key(path)}"
    place = (html / Path(path).parent / unquote(parts.path)).resolve()
    name = place.relative_to(html).as_posix() if place.is_relative_to(html) else ""
    if name in paths:
        return f"#{key(name)}--{parts.fragment}" if parts.fragment else f"#{key(name)}"
    return href


def write_pdf(html: Path, output: Path, browser_path: str | None = None) -> int:
    """Print the joined document; return the number of its bytes."""
    html = html.resolve()
    with tempfile.NamedTemporaryFile("w", dir=html, suffix=".html", encoding="utf-8") as file:
        file.write(joined(html))
        file.flush()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(offline=True)
            page.goto(Path(file.name).as_uri())
            page.evaluate(ALL_FACES)
            page.pdf(
                path=output,
                format="A4",
                tagged=True,
                outline=True,
                print_background=True,
                margin=dict(top="18mm", bottom="18mm", left="16mm", right="16mm"),
            )
            browser.close()
    return output.stat().st_size


def main(html: str, output: str) -> None:
    from shutil import which

    found = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    size = write_pdf(Path(html), Path(output), found)
    print(f"pdf:    {output}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
