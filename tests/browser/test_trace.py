"""A trace as a reader zooms into it: with keys, the wheel, a drag and two fingers."""

import re

import pytest
from visit import DESKTOP, PHONE

from bookkit import traces

PAGE = "chapters/where-the-time-goes.html"
NAMES = {"trace-2": ["zero-3", "zero-3-prefetch"], "trace-3": ["eight-ranks"]}
PATHS = """card => [...card.querySelectorAll(".trace-lanes svg")].map(svg =>
  [...svg.querySelectorAll("path")].map(path => path.getAttribute("d")))"""
TICKS = """card => [...card.querySelectorAll(".trace-ticks span")].map(mark => mark.textContent)"""
FINGERS = """([svg, apart]) => {
  const box = svg.getBoundingClientRect();
  const touch = (kind, id, share) => svg.dispatchEvent(new PointerEvent(kind, { pointerId: id,
    pointerType: "touch", clientX: box.left + share * box.width, clientY: box.top + 5 }));
  svg.setPointerCapture = () => {};
  touch("pointerdown", 11, 0.45); touch("pointerdown", 12, 0.55);
  touch("pointermove", 11, 0.5 - apart); touch("pointermove", 12, 0.5 + apart);
  touch("pointerup", 11, 0.5 - apart); touch("pointerup", 12, 0.5 + apart);
}"""


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desk", "phone"])
def page(opened, book_html, request):
    return opened((book_html / PAGE).as_uri(), viewport=request.param)


@pytest.mark.one_in(2)
def test_the_script_draws_what_the_build_drew(page, opened, book_html):
    """Must catch: other shapes with a script than without one, whole or zoomed in."""
    still = opened((book_html / PAGE).as_uri(), java_script_enabled=False)
    for ident, names in NAMES.items():
        card = page.locator(f"#{ident}")
        drawn = still.locator(f"#{ident}").evaluate(PATHS)
        assert card.evaluate(PATHS) == drawn and all(drawn)
        assert not still.locator(f"#{ident} .trace-tools").is_visible()
        assert still.locator(f"#{ident} .trace-axis span").count() >= 3
        card.locator("svg[tabindex]").first.press("+")
        page.wait_for_timeout(100)
        found = [traces.stored(name) for name in names]
        seconds = max(trace.seconds for trace in found)
        seen = 0.5 * seconds * (1 - 1 / 1.6), 0.5 * seconds * (1 + 1 / 1.6)
        wanted = [
            traces.shape(trace, lane, kind, *seen)
            for trace in found
            for lane in range(len(trace.lanes))
            for kind in traces.kinds_of(trace)
            if traces.shape(trace, lane, kind, 0, seconds)
        ]
        assert [path for svg in card.evaluate(PATHS) for path in svg] == wanted


@pytest.mark.one_in(2)
def test_the_script_draws_the_builds_arrows(page):
    """Must catch: an arrow that stays where it was when the reader zooms in; one to another
    kernel."""
    card, trace = page.locator("#trace-0"), traces.stored("queue")
    arrows = card.locator("svg[tabindex] .trace-arrows")
    assert arrows.get_attribute("d") == traces.arrows(trace, 0, trace.seconds)
    card.locator("svg[tabindex]").press("+")
    page.wait_for_timeout(100)
    seen = 0.5 * trace.seconds * (1 - 1 / 1.6), 0.5 * trace.seconds * (1 + 1 / 1.6)
    assert arrows.get_attribute("d") == traces.arrows(trace, *seen)


@pytest.mark.one_in(2)
def test_ways_to_zoom(page):
    """Must catch: a way in that does nothing; a zoom that leaves the step; a wheel that stops the
    page from scrolling before the reader has chosen the trace; a readout of another span, or one
    that goes with the finger."""
    card = page.locator("#trace-2")
    svg = card.locator("svg[tabindex]").first
    whole = card.evaluate(TICKS)

    def after(act):
        act()
        page.wait_for_timeout(100)
        found = card.evaluate(TICKS)
        card.get_by_role("button", name="Show the whole step").dispatch_event("click")
        page.wait_for_timeout(100)
        assert card.evaluate(TICKS) == whole
        return found

    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8)
    assert after(lambda: page.mouse.wheel(0, -200)) == whole  # the page scrolls
    svg.focus()
    assert after(lambda: svg.press("-")) == after(lambda: svg.press("ArrowLeft")) == whole
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8)
    assert after(lambda: page.mouse.wheel(0, -400)) != whole
    assert after(lambda: svg.press("+")) != whole
    assert after(lambda: card.get_by_role("button", name="Zoom in").click()) != whole
    assert after(lambda: svg.dblclick()) != whole
    handle = svg.element_handle()
    assert after(lambda: page.evaluate(FINGERS, [handle, 0.4])) != whole
    assert after(lambda: page.evaluate(FINGERS, [handle, 0.02])) == whole
    svg.hover(position=dict(x=0.45 * box["width"], y=12))
    assert re.search(r", backward: [\d.]+ .s from ", card.locator(".trace-readout").inner_text())
    svg.dispatch_event("pointerleave", dict(pointerType="touch"))  # a lifted finger
    assert card.locator(".trace-readout").inner_text()
