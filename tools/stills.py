"""The pictures of each chapter as one PDF, for a projector without a browser: make stills

python tools/stills.py build/html build/stills.pdf

A sheet is as wide as a projector, 16 to 9, and shows one thing of a page of the built book: a
figure with its caption, an explorer as it begins, each step of a stepper. Its place in the book
stands below. Chromium draws each thing in its page; the sheets are its HTML, so that lines and
letters stay sharp.
"""

import sys
import tempfile
from pathlib import Path

from bs4 import BeautifulSoup
from pdf import ALL_FACES, faces, pages, prefix_all
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1280, 720  # of a sheet, in CSS pixels
THINGS = ":is(.explorer, .figure, figure)"
# All that waits for a reader is opened; what a slider or a menu shows becomes an attribute, which
# HTML keeps.
COLLECT = """things => {
  const found = [], copied = (thing, where) => {
    for (const field of thing.querySelectorAll("input, select")) {
      if (field.matches("[type=radio]")) field.toggleAttribute("checked", field.checked);
      else if (field.matches("input")) field.setAttribute("value", field.value);
      else for (const one of field.options) one.toggleAttribute("selected", one.selected);
      if (field.max) field.setAttribute("max", field.max);
    }
    found.push([thing.id, where, thing.outerHTML]);
  };
  const all = [...document.querySelectorAll(`.bd-article ${things}`)];
  for (const thing of all.filter(one => !one.parentElement.closest(things))) {
    const slider = thing.matches(".stepper") && thing.querySelector("input[type=range]");
    if (!slider) { copied(thing, ""); continue; }
    for (let step = 0; step <= +slider.max; step++) {
      slider.value = step;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      copied(thing, `step ${step} of ${slider.max}`);
    }
  }
  return found;
}"""
OPEN = """() => {
  for (const one of document.querySelectorAll("[hidden].answer")) one.removeAttribute("hidden");
  const folds = document.querySelectorAll(".bd-article details:not(.explorer *)");
  for (const one of folds) one.open = true;
}"""
DRAWN = """() => [...document.querySelectorAll(".bd-article .explorer")].every(
  one => one.dataset.ready && one.querySelector(".explorer-drawing svg[width]"))"""
FIT = """() => {
  const left = [], fits = room => room.scrollHeight <= room.clientHeight
    && room.scrollWidth <= room.clientWidth
    && room.firstElementChild.scrollWidth <= room.firstElementChild.clientWidth + 1;
  for (const room of document.querySelectorAll(".still-room")) {
    const thing = room.firstElementChild, zoomed = thing.querySelector(":scope > svg") || thing;
    const grow = () => {
      for (let zoom = 2; zoom > 0.3; zoom -= 0.05) {
        zoomed.style.zoom = zoom;
        if (fits(room)) return zoom;
      }
    };
    if (!(grow() > 1.2) && zoomed !== thing) { thing.classList.add("beside"); grow(); }
    if (!fits(room)) left.push(room.nextElementSibling.textContent);
  }
  return left;
}"""
STYLE = f"""
@page {{ size: {WIDTH}px {HEIGHT}px; margin: 0; }}
html, body {{ margin: 0; padding: 0; background: var(--page); }}
.still {{
  width: {WIDTH}px; height: {HEIGHT}px; box-sizing: border-box; padding: 28px 48px 20px;
  display: flex; flex-direction: column; gap: 14px; overflow: hidden; break-after: page;
}}
.bd-article .still h2 {{
  margin: 0; padding: 0; border: 0; font: 600 22px var(--font-ui); flex: none;
}}
.still-room {{ flex: 1; min-height: 0; display: grid; place-content: center; overflow: hidden; }}
.bd-article {{ margin: 0; padding: 0; max-width: none; }}
.bd-article .still-room > * {{ margin: 0; max-width: none; }}
.still-room > .explorer {{ width: auto; border: 0; box-shadow: none; padding: 0; }}
.bd-article .still-room > .figure {{ width: 1120px; }}
.bd-article .still-room > .figure > p {{ max-width: 960px; margin: 16px auto 0; font-size: 18px; }}
.bd-article .still-room > .figure > p :is(a, em, span) {{ font-size: inherit; }}
.still-room > .beside {{
  display: grid; grid-template-columns: auto 400px; column-gap: 48px; place-content: center;
}}
.bd-article .still-room > .beside > svg {{ grid-row: 1 / span 9; width: 400px; }}
.still-room .bits-rows {{ columns: 2; column-gap: 40px; }}
.still-room .bits-row {{ break-inside: avoid; }}
.still-room .bits-legend {{ column-span: all; }}
.bd-article .still-place {{ margin: 0; font-size: 14px; color: var(--ink-soft); flex: none; }}
.explorer-foot, .explorer-status, .explorer-fallback, .explorer-stale, .explorer-python,
.explorer script, .present-open, .headerlink, .stepper-keys, .explorer [data-to],
.stepper-play {{ display: none !important; }}
"""


def stills(html: Path, page, path: str) -> list[tuple[str, str, str]]:
    """(id, which step, HTML) of each thing of a page, as its scripts have drawn it."""
    page.goto((html / path).as_uri())
    page.evaluate(OPEN)
    page.wait_for_function(DRAWN)
    page.wait_for_timeout(100)  # a frame after the last drawing
    return page.evaluate(COLLECT, THINGS)


def sheets(html: Path, page, path: str) -> str:
    """The sheets of one page of the book, in its order."""
    soup = BeautifulSoup((html / path).read_text("utf-8"), "html.parser")
    title = soup.select_one("meta[property='og:title']")["content"]
    home = soup.select_one("meta[property='og:url']")
    place = home["content"] if home else path
    made = []
    for number, (ident, step, text) in enumerate(stills(html, page, path)):
        thing = BeautifulSoup(text, "html.parser")
        prefix_all(thing, path, html, set())
        for link in thing.find_all("a"):  # to pages, which whoever has the sheets may not have
            if not link.get("href", "").startswith("https:"):
                link.unwrap()
        for node in thing.find_all(True):  # a step has the ids of the step before
            for name in ("id", "for", "name", "aria-labelledby", "aria-describedby"):
                if node.get(name):
                    node[name] = f"{node[name]}-{number}"
        where = f"{place}#{ident}" if ident else place
        made.append(
            f'<section class="still"><h2>{title}</h2><div class="still-room">{thing}</div>'
            f'<p class="still-place">{where}{f" · {step}" if step else ""}</p></section>'
        )
    return "".join(made)


def chapters(html: Path) -> list[str]:
    """The pages of the book's chapters, and those between them."""
    return [path for path in pages(html) if path.startswith("chapters/")]


def write_stills(html: Path, output: Path, paths: list[str], browser) -> int:
    """Print the sheets of those pages; return how many there are. Raises ValueError where
    something is too large for a sheet."""
    html = html.resolve()
    page = browser.new_page(
        viewport=dict(width=WIDTH, height=HEIGHT),
        offline=True,
        color_scheme="light",
        reduced_motion="reduce",
    )
    drawn = [sheets(html, page, path) for path in paths]
    with tempfile.NamedTemporaryFile("w", dir=html, suffix=".html", encoding="utf-8") as file:
        file.write(document(html, paths, drawn))
        file.flush()
        page.goto(Path(file.name).as_uri())
        page.evaluate(ALL_FACES)
        if large := page.evaluate(FIT):
            raise ValueError(f"too large for a sheet: {', '.join(large)}")
        page.emulate_media(media="screen")
        page.pdf(
            path=output,
            width=f"{WIDTH}px",
            height=f"{HEIGHT}px",
            tagged=True,
            outline=True,
            print_background=True,
        )
        count = page.locator(".still").count()
    page.close()
    return count


def document(html: Path, paths: list[str], drawn: list[str]) -> str:
    """One HTML document with all sheets, under the style sheets of their pages."""
    styles: dict[str, None] = {}
    for path in paths:
        soup = BeautifulSoup((html / path).read_text("utf-8"), "html.parser")
        for link in soup.select("head link[rel=stylesheet]"):
            name = (html / Path(path).parent / link["href"].partition("?")[0]).resolve()
            styles[f'<link rel="stylesheet" href="{name.relative_to(html)}">'] = None
    return (
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>Split, Shard, Recompute: stills</title>{''.join(styles)}<style>{faces(html)}"
        f"{STYLE}</style></head><body><article class='bd-article'>{''.join(drawn)}</article>"
        "</body></html>"
    )


def main(html: str, output: str) -> None:
    from shutil import which

    found = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        paths = chapters(Path(html).resolve())
        count = write_stills(Path(html), Path(output), paths, browser)
        browser.close()
    print(f"stills: {output}, {count} sheets, {Path(output).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
