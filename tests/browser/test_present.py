"""A page as slides: one thing on the whole screen, the answer hidden until a key is pressed."""

import pytest
from visit import DESKTOP, PHONE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_a_page_is_shown_thing_by_thing(opened, book_html, screen):
    """Must catch: an answer on the screen before its key; an arrow of a slider that goes to the
    next thing; an Escape that leaves the page covered; an answer shown without its question."""
    address = (book_html / "chapters" / "zero.html").as_uri()
    page = opened(f"{address}?present=zero", viewport=screen)
    words = page.locator("#explorer-zero-words")
    page.wait_for_selector(".presented svg[width]")
    assert page.locator(".presented").get_attribute("id") == "explorer-zero"
    assert not words.is_visible()
    page.keyboard.press("a")
    assert words.is_visible()
    page.locator(".presented [type=range]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".presented").get_attribute("id") == "explorer-zero"
    page.keyboard.press("PageDown")
    asked = page.locator(".presented.box-predict")
    assert asked.is_visible() and not page.locator(".present-answer").count()
    page.keyboard.press("a")
    assert page.locator(".present-answer").inner_text().strip()
    page.keyboard.press("PageDown")
    assert (
        not page.locator(".presented")
        .locator("xpath=ancestor::*[contains(@class,'answer')]")
        .count()
    )
    assert not page.locator(".present-answer").count()
    page.keyboard.press("Escape")
    assert not page.locator(".presented, .present-bar").count()
    page.locator(".present-open").first.click()
    assert page.locator(".presented").get_attribute("id") == "explorer-zero"
    page.keyboard.press("f")
    assert not page.locator(".presented").count()
    assert not page.watch.errors and not page.watch.failed


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("path", "asked"), [("labs/04-collectives.html", ""), ("workshop/plans.html", "plan-90")]
)
def test_a_lab_and_a_plan_are_slides(opened, book_html, path, asked):
    """Must catch: a lab's questions that are not shown; a plan whose rows are not, or come with
    those of another plan; an empty cell with its head; a solution that nobody asked for."""
    page = opened(f"{(book_html / path).as_uri()}?present={asked}")
    page.wait_for_selector(".present-bar")
    rows = page.locator(f"section:has(> #{asked}) tbody tr").count() if asked else 5
    of = int(page.locator(".present-bar span").first.inner_text().split()[-1])
    assert of == rows if asked else of >= rows
    for _ in range(1, of):
        page.keyboard.press("PageDown")
        assert page.locator(".presented").is_visible()
        assert page.locator(".presented td:visible").evaluate_all(
            "cells => cells.every(cell => cell.dataset.head && cell.innerText)"
        )
    assert not page.watch.errors and not page.watch.failed


COUNT = """() => [
  [...document.querySelectorAll(".bd-article p")].filter(one => !one.closest(".answer")
    && /^Figure \\d+\\./.test(one.textContent)).length,
  document.querySelectorAll(".bd-article :is(.planner, .plotly-figure)").length,
  +document.querySelector(".present-bar span").textContent.split(" of ")[1]]"""
SLIDES = """() => { const seen = [];
  for (;;) {
    const one = document.querySelector(".presented");
    const words = [...one.querySelectorAll("p")].find(p => /^Figure \\d+\\./.test(p.textContent));
    seen.push(words && words.checkVisibility() ? "figure" : one.className);
    const [, on] = document.querySelectorAll(".present-bar button");
    on.click();
    if (document.querySelector(".presented") === one) return seen;
  } }"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "page", ["pipelines", "where-the-time-goes", "hardware", "zero-in-time", "any-layout", "lab"]
)
def test_the_deck_has_every_figure(opened, book_html, page):
    """Must catch: a figure of another kind that the deck leaves out; a figure inside another shown
    twice; the figures of a lab left out; a figure in a fold that stays folded."""
    path = "labs/06-zero.html" if page == "lab" else f"chapters/{page}.html"
    shown = opened((book_html / path).as_uri() + "?present")
    shown.wait_for_selector(".present-bar")
    captions, others, slides = shown.evaluate(COUNT)
    seen = shown.evaluate(SLIDES)
    assert len(seen) == slides and sum(one == "figure" for one in seen) == captions
    assert sum("planner" in one or "plotly-figure" in one for one in seen) == others
    assert captions + others >= 1
