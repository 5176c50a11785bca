"""A card alone on a page of a small book, and what a reader does with it: what tests of single
cards share."""

from contextlib import contextmanager
from shutil import copytree

from small_books import ROOT, real_book
from visit import opener_of_pages, until

from coursekit.recordings.recordings import read_all
from coursekit.topics.collectives.steps import stepper_steps
from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.histogram import recorded_sizes, share_detail, share_sentence
from coursekit.topics.tensor_parallelism.steps import pair_steps
from coursekit.topics.zero.steps import name_of, shard_steps

# Directive -> how a page asks for it.
CARDS = {
    "bits": "{bits}",
    "gradients": "{gradients}",
    "pairs": "{pairs}",
    "shards": "{shards}",
    "stepper": "{stepper} ring all-reduce",
}


def build_pages(folder, pages, recordings=False):
    """Name -> path of each page, name -> text, in a book made as the real one is, with its
    recordings or without."""
    from bookkit.build import build_book

    source = real_book(folder / "book", **{f"chapters/{name}": pages[name] for name in pages})
    if recordings:
        copytree(ROOT / "measured", source / "measured")
    build_book(source, folder / "html")
    return {name: folder / "html" / "chapters" / f"{name}.html" for name in pages}


def build_cards(folder, cards, recordings=True, **pages):
    """`build_pages` of pages that have one card each: name -> directive and argument; and of
    others, name=text."""
    page = "# A page\n\nWords.\n\n```{}\n```\n\nMore words.\n"
    pages |= {name: page.format(card) for name, card in cards.items()}
    return build_pages(folder, pages, recordings)


AS_WIDE = """[...document.querySelectorAll(".explorer-drawing")].every(
  place => +place.querySelector("svg").getAttribute("width") === place.clientWidth)"""


class Card:
    """A card on an open page; a class for each kind says how its element is found, and what a
    reader does with it."""

    root_selector = ".explorer"

    def __init__(self, page):
        self.page, self.root = page, page.locator(self.root_selector)

    def find(self, selector):
        return self.root.locator(selector)

    def until_as_wide(self):
        """Wait until every picture is as wide as its place."""
        until(self.page, AS_WIDE)

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

    def until_shown(self, *of):
        """Wait until the card shows a choice's steps on its ranks."""
        until(self.page, SHOWN, arg=[len(self.steps(*of)) - 1, of[1]])


# The last step of the slider, and the ranks that are drawn.
SHOWN = """([last, ranks]) => +document.querySelector(".stepper [type=range]").max === last
  && document.querySelectorAll(".stepper svg .strong").length === ranks"""


class Stepper(StepperCard):
    steps = staticmethod(stepper_steps)

    def choose(self, name, n):
        """Choose as a reader does, from the menu and by a click on a number."""
        if name != self.find("select").input_value():
            self.find("select").select_option(name)
            until(
                self.page,
                """name => document.querySelector(".explorer-title").textContent
                  .toLowerCase().startsWith(name + ",")""",
                arg=name,
            )
        self.find(f"[type=radio][value='{n}']").check()
        self.until_shown(name, n)


class Shards(StepperCard):
    steps = staticmethod(shard_steps)

    def choose(self, stage, ranks, microbatches):
        times = name_of(0, microbatches).split(", ")[1]
        for group, value in (("stage", f"stage {stage}"), ("n", ranks), ("microbatches", times)):
            self.find(f"[name=shards-{group}][value='{value}']").check()
            until(
                self.page,
                """value => document.querySelector(".stepper [value='" + value + "']").checked
                && document.querySelector(".explorer-title").textContent.endsWith(
                  document.querySelector("[name=shards-stage]:checked").value)""",
                arg=str(value),
            )
        self.until_shown(stage, ranks, microbatches)


class Pairs(StepperCard):
    steps = staticmethod(pair_steps)

    def choose(self, way, ranks):
        self.find(f"[name=pairs-way][value='{way}']").check()
        self.find(f"[name=pairs-n][value='{ranks}']").check()
        self.until_shown(way, ranks)


STEPPED = {"stepper": Stepper, "shards": Shards, "pairs": Pairs}


FOUND, _ = recorded_sizes(read_all(ROOT / "measured"))


class GradientCard(Card):
    root_selector = ".explorer.gradients"

    def choose(self, of=None, steps=None, kind=None, microbatches=None, scale=None):
        if of is not None:
            self.find("select").select_option(of)
        for name, value in (("steps", steps), ("kind", kind)):
            if value is not None:
                self.find(f"[name=gradients-{name}][value='{value}']").check()
        for name, value in (("microbatches", microbatches), ("scale", scale)):
            if value is not None:
                self.find(f"#gradients-{name}").fill(str(value))

    def shows(self, of, steps, kind, microbatches, scale):
        sizes, kind = FOUND[of, steps], CARD_FORMATS[kind]
        words = share_sentence(sizes, kind, microbatches, scale)
        assert self.find(".explorer-sentence").text_content() == words
        assert self.find(".explorer-detail").text_content() == share_detail(
            sizes, kind, microbatches
        )
        return True


@contextmanager
def opener(browser, path, kind, **usual):
    """open_card(**options of the browser's context): the card on the page at `path` of a built
    book, as the class `kind` has it. A reader has a light desktop and wants no motion, unless
    `usual` or the options say otherwise."""
    with opener_of_pages(browser) as opened:

        def open_it(**options):
            page = opened(path.as_uri(), **usual | options)
            if options.get("java_script_enabled", True):
                page.wait_for_selector(f"{kind.root_selector} svg[width]")
            return kind(page)

        yield open_it
