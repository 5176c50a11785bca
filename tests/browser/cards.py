"""A card alone on a page of a small book, and what a reader does with it: what tests of single
cards share."""

from contextlib import contextmanager
from pathlib import Path
from shutil import copy, copytree

from visit import DESKTOP, Watch

ROOT = Path(__file__).resolve().parents[2]

# Directive -> how a page asks for it.
CARDS = {
    "bits": "{bits}",
    "gradients": "{gradients}",
    "pairs": "{pairs} tensor",
    "shards": "{shards} 1",
    "stepper": "{stepper} ring all-reduce",
}


def build_cards(folder, cards, recordings=True):
    """Name -> path of the page that has that card only, in a book made as the real one is, with its
    recordings or without. `cards`: name -> directive and argument."""
    from bookkit.build import build_book

    source = folder / "book"
    (source / "chapters").mkdir(parents=True)
    for path in (ROOT / "_config.yml", *ROOT.glob("*.bib")):
        copy(path, source)
    if recordings:
        copytree(ROOT / "measured", source / "measured")
    (source / "index.md").write_text("# A book\n\nRead on.\n")
    for name, card in cards.items():
        page = f"# A page\n\nWords.\n\n```{card}\n```\n\nMore words.\n"
        (source / "chapters" / f"{name}.md").write_text(page)
    files = "".join(f"  - file: chapters/{name}\n" for name in cards)
    (source / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{files}")
    build_book(source, folder / "html")
    return {name: folder / "html" / "chapters" / f"{name}.html" for name in cards}


class Card:
    """A card on an open page; a class for each kind says how its element is found, and what a
    reader does with it."""

    root_selector = ".explorer"

    def __init__(self, page):
        self.page, self.root = page, page.locator(self.root_selector)

    def find(self, selector):
        return self.root.locator(selector)

    def rows(self):
        """The table that stands for the card where there is no script, as texts."""
        return self.find("tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )


class StepperCard(Card):
    """A card that goes step by step."""

    root_selector = ".stepper"

    def step(self, number):
        self.find("[type=range]").evaluate(
            "(slider, number) => { slider.value = number; slider.dispatchEvent(new"
            " Event('input')); }",
            number,
        )

    @property
    def at(self):
        return int(self.find("[type=range]").input_value())

    @property
    def words(self):
        return " ".join(
            self.find(".explorer-sentence, .explorer-detail").all_text_contents()
        ).replace("\N{NO-BREAK SPACE}", " ")

    def says(self, steps, number):
        """Whether the card is at that one of `steps` and says its words."""
        step = steps[number]
        return self.words == f"{step.sentence} {step.detail}" and self.at == number

    def assert_picture_and_buttons_seen_together(self):
        """Above the words, and these above the menus."""
        parts = (".explorer-picture", ".explorer-controls", ".explorer-words", ".explorer-menus")
        boxes = [self.find(part).bounding_box() for part in parts]
        for above, below in zip(boxes, boxes[1:]):
            assert above["y"] + above["height"] <= below["y"] + 1
        assert boxes[0]["height"] + boxes[1]["height"] <= self.page.viewport_size["height"]

    def assert_texts_apart(self):
        """Texts of the picture keep their size, stay inside, and do not run into one another."""
        texts = self.find("svg text").evaluate_all(
            """texts => texts.map(text => { const box = text.getBoundingClientRect();
          const svg = text.ownerSVGElement.getBoundingClientRect();
          return [text.textContent, parseFloat(getComputedStyle(text).fontSize),
            box.left - svg.left, svg.right - box.right, box.left, box.right,
            Math.round(box.top)]; })"""
        )
        for words, size, left, right, *_ in texts:
            assert size >= 11 and left >= -1 and right >= -1, (words, size, left, right)
        for one in texts:
            for other in texts:
                if one[6] == other[6] and one[4] < other[4]:
                    assert one[5] < other[4], (one, other)


@contextmanager
def opener(browser, path, kind, **usual):
    """open_card(**options of the browser's context): the card on the page at `path` of a built
    book, as the class `kind` has it. A reader has a light desktop and wants no motion, unless
    `usual` or the options say otherwise."""
    contexts = []

    def open_it(**options):
        given = {"viewport": DESKTOP, "color_scheme": "light", "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**{**given, **usual, **options}))
        page = contexts[-1].new_page()
        page.watch = Watch.of(page)
        page.add_init_script(
            "addEventListener('explorer:ready', () => { window.readyWhile = document.readyState; },"
            " true)"
        )
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector(f"{kind.root_selector} svg[width]")
        return kind(page)

    yield open_it
    for context in contexts:
        context.close()


def contrast(one, other):
    """Contrast of two colours in a browser's notation, after WCAG."""

    def light(colour):
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (int(channel) / 255 for channel in colour[4:-1].split(","))
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
