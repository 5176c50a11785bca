"""A predict box as a reader meets it: an answer is locked, what follows opens, and the browser
remembers."""

from functools import partial

import pytest
from night import at_night
from visit import JS, PAPER, PHONE, Watch, axe_findings, click

pytestmark = pytest.mark.xdist_group("cards")  # one worker builds their small book


@pytest.fixture
def open_page(opened, card_pages):
    """open_page(**options of the browser's context): the page of boxes."""
    return partial(opened, card_pages["predict"].as_uri())


def box(page, number):
    return page.locator(".box-predict").nth(number)


def test_an_answer_is_locked_and_opens_what_follows(open_page):
    """Must catch: an answer that is there before anybody predicted; a prediction that can be
    changed after the answer was seen; one that is lost with the page; an empty prediction."""
    page = open_page()
    assert not page.get_by_text("Seven, as").is_visible()
    first = box(page, 0)
    click(first.get_by_role("button", name="Lock it and look"))
    assert not page.get_by_text("Seven, as").is_visible()
    first.get_by_label("Your prediction").fill(" about <b>six</b> ")
    first.get_by_label("Your prediction").press("Enter")
    assert page.get_by_text("Seven, as").is_visible()
    assert first.locator("q").text_content() == "about <b>six</b>"
    assert not first.get_by_label("Your prediction").is_visible()
    locked, page = page, page.context.new_page()
    page.watch = Watch.of(page)
    page.goto(locked.url)
    for _ in range(20):  # what a page keeps reaches others when the browser has time
        if box(page, 0).locator("q").is_visible():
            break
        page.wait_for_timeout(200)
        page.reload()
    locked.close()
    assert page.get_by_text("Seven, as").is_visible() and box(page, 0).locator("q").is_visible()
    click(box(page, 0).get_by_role("button", name="Predict again"))
    assert not page.get_by_text("Seven, as").is_visible()
    assert box(page, 0).get_by_label("Your prediction").input_value() == "about <b>six</b>"
    page.reload()
    assert not box(page, 0).locator("q").is_visible()
    assert not page.watch.errors and not page.watch.failed


def test_a_fold_opens_and_nothing_else_hides(open_page):
    """Must catch: what stands between box and answer hidden with it, such as a definition; a box
    without an answer that hides the next section; a part of an answer that is there before."""
    page = open_page()
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


def test_without_a_script_the_text_is_there(open_page):
    """Must catch: an answer that only a script shows."""
    page = open_page(java_script_enabled=False)
    assert page.get_by_text("Seven, as").is_visible()
    assert not page.locator(".predict-room").count()


def test_paper_has_the_answer_and_no_field(open_page):
    """Must catch: an answer that is missing in print."""
    page = open_page(viewport=PAPER)
    page.emulate_media(media="print")
    assert page.locator(".answer p").first.bounding_box()["height"] > 10
    assert not page.locator(".predict-room input").first.is_visible()


def test_where_nothing_can_be_kept(open_page):
    """Must catch: a page that stops where the browser refuses storage."""
    page = open_page()
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });"
    )
    page.reload()
    box(page, 0).get_by_label("Your prediction").fill("6")
    click(box(page, 0).get_by_role("button", name="Lock it and look"))
    assert page.get_by_text("Seven, as").is_visible() and not page.watch.errors


@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "dark", "viewport": PHONE},
        *at_night({}, {"viewport": PHONE}, {"color_scheme": "dark"}),
    ],
)
def test_access_and_widths(open_page, options):
    """Must catch: a field without a name, pale words, a row that a phone cuts off."""
    page = open_page(**options)
    assert not axe_findings(page) and not page.evaluate(JS.BEYOND)
    box(page, 0).get_by_label("Your prediction").fill("a long prediction " * 8)
    click(box(page, 0).get_by_role("button", name="Lock it and look"))
    assert not axe_findings(page) and not page.evaluate(JS.BEYOND)
