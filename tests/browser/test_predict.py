"""A predict box as a reader meets it: an answer is locked, what follows opens, and the browser
remembers."""

import re
from pathlib import Path
from shutil import copy

import pytest
from visit import BEYOND, DESKTOP, PAPER, PHONE, Watch, axe_findings, click

# the text of each answer that is hidden, of its box, and of what follows in the section without it
ANSWERS = """() => [...document.querySelectorAll(".box-predict.asks")].map(box => {
  const marked = [...document.querySelectorAll(".box-predict.asks, .answer")];
  const answer = marked[marked.indexOf(box) + 1];
  if (!answer || !answer.matches(".answer")) return null;
  let beside = "", next = box;
  while (next = next.nextElementSibling) {
    if (next.matches("section, .box-predict, .answer")) continue;
    const shown = next.cloneNode(true);
    shown.querySelectorAll(".answer, .explorer").forEach(part => part.remove());
    beside += shown.textContent + " ";
  }
  return [answer.textContent, box.textContent, beside];
}).filter(Boolean)"""
NUMBER = re.compile(r"\b\d[\d,.]*\d (?:[kMGT]?i?B|ms|s|bytes)\b|\b\d+\.\d%")
DEFINES = re.compile(r"[^.]*\bis called\b[^.]*\.")
ROOT = Path(__file__).resolve().parents[2]
PAGE = """# A page

```{predict}
How many?
```

A *dozen* is twelve.

:::{answer}
Seven, as [everybody](there) knows.
:::

```{predict}
How many in a table?
```

A definition that the answer needs.

:::{answer}
| Things |
|--:|
| 9 |

Nine, says the table.
:::

Another paragraph.

```{predict}
And how many in a fold?
```

:::{dropdown} Answer
:class-container: answer

Eight.
:::

(there)=
```{predict}
Nothing follows. Which number?
```

## The end

Words.
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The page of a small book, made as the real one is."""
    from bookkit.build import build_book

    folder = tmp_path_factory.mktemp("predict")
    (folder / "book" / "chapters").mkdir(parents=True)
    for path in (ROOT / "_config.yml", *ROOT.glob("*.bib")):
        copy(path, folder / "book")
    (folder / "book" / "index.md").write_text("# A book\n\nRead on.\n")
    (folder / "book" / "chapters" / "page.md").write_text(PAGE)
    (folder / "book" / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nchapters: [{file: chapters/page}]\n"
    )
    build_book(folder / "book", folder / "html")
    return (folder / "html" / "chapters" / "page.html").as_uri()


@pytest.fixture
def open_context(browser):
    contexts = []

    def open_it(**options):
        given = {"viewport": DESKTOP, "color_scheme": "light", "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**{**given, **options}))
        return contexts[-1]

    yield open_it
    for context in contexts:
        context.close()


def opened(context, address):
    page = context.new_page()
    page.watch = Watch.of(page)
    page.goto(address)
    return page


def box(page, number):
    return page.locator(".box-predict").nth(number)


def test_an_answer_is_locked_and_opens_what_follows(open_context, built):
    """Must catch: an answer that is there before anybody predicted; a prediction that can be
    changed after the answer was seen; one that is lost with the page; an empty prediction."""
    context = open_context()
    page = opened(context, built)
    assert not page.get_by_text("Seven, as").is_visible()
    first = box(page, 0)
    click(first.get_by_role("button", name="Lock it and look"))
    assert not page.get_by_text("Seven, as").is_visible()
    first.get_by_label("Your prediction").fill(" about <b>six</b> ")
    first.get_by_label("Your prediction").press("Enter")
    assert page.get_by_text("Seven, as").is_visible()
    assert first.locator("q").text_content() == "about <b>six</b>"
    assert not first.get_by_label("Your prediction").is_visible()
    locked, page = page, opened(context, built)
    for _ in range(20):  # what a page keeps reaches others when the browser has time
        if box(page, 0).locator("q").is_visible():
            break
        page.reload()
    locked.close()
    assert page.get_by_text("Seven, as").is_visible() and box(page, 0).locator("q").is_visible()
    click(box(page, 0).get_by_role("button", name="Predict again"))
    assert not page.get_by_text("Seven, as").is_visible()
    assert box(page, 0).get_by_label("Your prediction").input_value() == "about <b>six</b>"
    page.reload()
    assert not box(page, 0).locator("q").is_visible()
    assert not page.watch.errors and not page.watch.failed


def test_a_fold_opens_and_nothing_else_hides(open_context, built):
    """Must catch: what stands between box and answer hidden with it, such as a definition; a box
    without an answer that hides the next section; a part of an answer that is there before."""
    page = opened(open_context(), built)
    assert page.get_by_text("is twelve").is_visible()
    assert page.get_by_text("A definition").is_visible()
    assert not page.locator("details.sd-dropdown[open]").count()
    box(page, 2).get_by_label("Your prediction").fill("8")
    click(box(page, 2).get_by_role("button", name="Lock it and look"))
    assert page.get_by_text("Eight.").is_visible()
    assert page.get_by_text("Words.").is_visible()
    assert box(page, 3).get_by_role("button", name="Lock it", exact=True).is_visible()
    click(box(page, 0).get_by_role("button", name="Look without one"))
    assert page.get_by_text("Seven, as").is_visible()
    assert box(page, 0).get_by_label("Your prediction").is_visible()
    assert not page.get_by_text("Nine, says").is_visible()
    assert page.get_by_text("Another paragraph.").is_visible()
    click(box(page, 1).get_by_role("button", name="Look without one"))
    assert page.get_by_text("Nine, says").is_visible()


def test_no_number_of_an_answer_is_beside_its_box(open_context, book_html):
    """In every chapter: numbers with their units, in the section of a box
    whose answer is hidden.

    Must catch: an answer that is marked in part, so that a table or a formula beside it gives it
    away; a definition inside of an answer, which whoever scrolls on would miss."""
    page = open_context().new_page()
    given_away, boxes = [], 0
    for path in sorted((book_html / "chapters").glob("*.html")):
        if "box-predict" not in path.read_text(encoding="utf-8"):
            continue
        page.goto(path.as_uri())
        for answer, question, beside in page.evaluate(ANSWERS):
            boxes += 1
            known = set(NUMBER.findall(question))
            given_away += [
                f"{path.stem}: {number}"
                for number in set(NUMBER.findall(answer)) - known
                if number in beside
            ]
            given_away += [f"{path.stem}: {said}" for said in DEFINES.findall(answer)]
    assert not given_away and boxes > 12


def test_without_a_script_the_text_is_there(open_context, built):
    """Must catch: an answer that only a script shows."""
    page = opened(open_context(java_script_enabled=False), built)
    assert page.get_by_text("Seven, as").is_visible()
    assert not page.locator(".predict-room").count()


def test_paper_has_the_answer_and_no_field(open_context, built):
    """Must catch: an answer that is missing in print."""
    page = opened(open_context(viewport=PAPER), built)
    page.emulate_media(media="print")
    assert page.locator(".answer p").first.bounding_box()["height"] > 10
    assert not page.locator(".predict-room input").first.is_visible()


def test_where_nothing_can_be_kept(open_context, built):
    """Must catch: a page that stops where the browser refuses storage."""
    context = open_context()
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });"
    )
    page = opened(context, built)
    box(page, 0).get_by_label("Your prediction").fill("6")
    click(box(page, 0).get_by_role("button", name="Lock it and look"))
    assert page.get_by_text("Seven, as").is_visible() and not page.watch.errors


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}])
def test_access_and_widths(open_context, built, options):
    """Must catch: a field without a name, pale words, a row that a phone cuts off."""
    page = opened(open_context(**options), built)
    assert not axe_findings(page) and not page.evaluate(BEYOND)
    box(page, 0).get_by_label("Your prediction").fill("a long prediction " * 8)
    click(box(page, 0).get_by_role("button", name="Lock it and look"))
    assert not axe_findings(page) and not page.evaluate(BEYOND)
