"""The findings of a browser that opens a page of the built book once and looks at it in every way:
lists of sentences; the tests say which list has to be empty."""

import json
import time
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from axe_playwright_python.sync_playwright import Axe
from keyboard import VALUES, walk
from page_scripts import page_scripts
from playwright.sync_api import Error
from pypdfium2 import PdfDocument

from coursekit.show.explorers import EXPLORERS

JS = page_scripts("visit")
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
TOUCH = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
PAPER = {"width": 718, "height": 1050}  # A4 within margins of 10 mm, in CSS pixels

# Their controls are reached here, and moved in test_explorer.py.
EXPLORER_IDS = {f"explorer-{name}" for name in EXPLORERS}

# What breaks a rule of WCAG 2.2, levels A and AA, or what axe calls serious or critical besides;
# and heads of tables without text.
AXE = Axe()
WCAG = {"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"}
GRAVE = ("serious", "critical")
ALSO = ("empty-table-header",)


# The rules about colour look at what lies behind each text, and the one about size at what lies
# near each target. For both axe first lays a grid over all that can be seen, which takes longer
# than all other rules: it sees those texts and targets alone. `region` finds nothing grave.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
SIZE_RULES = ["target-size"]
LOOKS = "[data-look]"
TARGETS = "a, button, input, select, summary, textarea, [tabindex]"

# A browser that is out of breath may forget to draw: then a frame never comes, and nobody waits.
FRAME = """const frame = () => new Promise((done, fail) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(() => fail(new Error("no frame in 20 s")), 20000); });"""
SCROLL_THROUGH = (
    f"async () => {{ {FRAME}"
    + """
  for (let y = 0; y < document.scrollingElement.scrollHeight; y += innerHeight) {
    scrollTo(0, y); await frame(); }
  scrollTo(0, 0);
  await document.fonts.ready;
  await frame();
}"""
)

# Tab stops at boxes that can be scrolled. book.js looks again a moment after a change of width.
ONLY_WIDE_BOXES_HAVE_STOPS = """[...document.querySelectorAll(
    ":is(pre,.math-scroll,.pst-scrollable-table-container,.output,.plotly-figure)[tabindex='0']")]
  .every(box => box.scrollWidth > box.clientWidth || !box.checkVisibility())"""


DRAWN = f"async () => {{ {FRAME} for (let k = 0; k < 3; k++) await frame(); }}"
# Scripts of cards wait: a call of BOOK.start and its like is kept, and made when the test says so.
HOLD_CARDS = """
window.held = [];
window.BOOK = new Proxy({}, {get: (own, name) =>
  !["start", "stepper", "bits", "gradients", "planner", "trace"].includes(name) || !own[name]
    ? own[name]
    : new Proxy(own[name], {apply: (call, self, given) => { held.push(() => call(...given)); }})});
"""
CARDS = ".explorer, .planner, .trace-card"
# Where everything is that can be read or used, as [node, its words, left, top, height].
PLACES = f"""() => {{
  window.placesNow = () => [...document.querySelectorAll(
      "article :is(h1, h2, h3, h4, p, li, td, th, pre, label, button, input, select, summary), "
      + "article :is(.explorer-drawing, .ranks-drawing, .trace-lanes)")]
    .filter(node => node.checkVisibility({{visibilityProperty: true}}))
    .map(node => {{
      const box = node.getBoundingClientRect();
      return [node, node.localName + " " + node.className + " " + node.textContent.slice(0, 40),
        box.left + scrollX, box.top + scrollY, box.height];
    }});
  window.placesBefore = placesNow();
  document.querySelectorAll(".explorer-nearest button").forEach(one => {{ one.dataset.old = ""; }});
  return [held.length, document.querySelectorAll("{CARDS}").length];
}}"""


GIVEN_UP = "net::ERR_ABORTED"  # a stepper showed the next picture before this one had come


@dataclass
class Watch:
    """The requests of a page, and what went wrong on the way. Attach it before the page goes
    anywhere."""

    loaded: set[str] = field(default_factory=set)  # addresses
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of the page's scripts, and on the console

    @classmethod
    def of(cls, page) -> "Watch":
        watch = cls()
        page.on("request", lambda request: watch.loaded.add(request.url))
        page.on(
            "requestfailed",
            lambda request: (
                watch.failed.append(f"{request.url}: {request.failure}")
                if request.failure != GIVEN_UP
                else None
            ),
        )
        page.on(
            "response",
            lambda response: (
                watch.failed.append(f"{response.url}: {response.status}")
                if response.status >= 400
                else None
            ),
        )
        page.on("pageerror", lambda error: watch.errors.append(str(error)))
        page.on(
            "console",
            lambda message: (
                watch.errors.append(f"console {message.type}: {message.text}")
                if message.type in ("error", "warning", "assert")
                else None
            ),
        )
        return watch

    def forget(self) -> None:
        """Nothing has happened so far."""
        self.loaded.clear()
        self.failed.clear()
        self.errors.clear()

    def outside(self, home: str) -> list[str]:
        """Addresses that were asked for and do not begin with `home`."""
        return sorted(
            address for address in self.loaded if not address.startswith((home, "data:", "blob:"))
        )


@dataclass
class Visit:
    """One page, looked at. Each list holds sentences about what is wrong."""

    watch: Watch
    blocks: list[str]  # what there is to read, block by block
    icons: list[str]  # addresses of its icon
    late: list[str]  # cards that were not alive while the page was still read
    axe: list[str]  # its findings on a phone
    screens: list[dict]  # FIRST_SCREEN on a phone and on a desk, of a page that has one
    answers: list[list[str]]  # ANSWERS
    phone: list[str]  # what is too wide for 390 px
    collisions: list[str]  # texts of figures that run into one another there
    keyboard: list[str]  # what is wrong on the way through it with the Tab key
    paper: list[str]


def until(page, expression: str, arg=None, seconds: float = 30) -> None:
    """Wait until a JavaScript expression, or a function of `arg`, is true on the page. Playwright's
    own `wait_for_function` evaluates text within the page, which the policy of a page forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, f"after {seconds} s not yet true: {expression}"
        page.wait_for_timeout(20)


LISTEN = """node => {
  node.arrived = false;
  node.addEventListener("click", () => { node.arrived = true; }, {capture: true, once: true});
}"""


def click(locator, **how) -> None:
    """A click of the mouse that arrives. A browser out of breath may lose one (in one of a thousand
    runs beside busy processes), and Playwright takes a click without events for a success."""
    node = locator.element_handle()
    node.evaluate(LISTEN)
    for _ in range(3):
        locator.click(**how)
        if node.evaluate("node => node.arrived"):
            return
    raise AssertionError(f"none of three clicks has arrived: {locator}")


def frames(page, script: str):
    """The result of a script that waits for frames. Where the browser forgot to draw, the process
    in which it draws is started anew: then it goes on, as a tab that was never closed."""
    try:
        return page.evaluate(script)
    except Error as error:
        if "no frame" not in str(error):
            raise
    for process in drawing_processes():
        process.kill()
    return page.evaluate(script)


def on_paper(page, **media):
    """The page as it is printed, with its pictures drawn as wide as the paper."""
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print", **media)
    frames(page, DRAWN)


def printed_text(sheets: PdfDocument) -> str:
    """The words of a PDF, with one space for any white space."""
    return " ".join(" ".join(sheet.get_textpage().get_text_range() for sheet in sheets).split())


def drawing_processes() -> list:
    """The processes in which browsers of this test run draw. Each browser starts its own again when
    it is gone."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "--type=gpu-process" in child.cmdline()
    ]


LOADED_WHEN_NEAR = ".plotly-figure, .explorer, .planner, .trace-card, [loading=lazy]"


def scroll_through(page) -> None:
    """Come past everything, in a window that is high meanwhile: few long pictures are drawn sooner
    than many short ones."""
    window = page.viewport_size
    page.set_viewport_size({**window, "height": 3200})
    frames(page, SCROLL_THROUGH)
    page.set_viewport_size(window)


def moved_by_scripts(page, address: str) -> list[str]:
    """Go to `address` and hold the scripts of its cards; then let them run. What is elsewhere, or
    higher, afterwards. The page's `load` waits for fonts that never come, until the places are
    known: whatever a script does then is seen, too."""
    fonts = []
    page.route("**/fonts/book-*", lambda route: fonts.append(route))
    page.goto(address, wait_until="domcontentloaded")
    held, cards = page.evaluate(PLACES)
    assert held == cards, f"{held} of {cards} cards are held"
    assert fonts, "no font was asked for"
    for route in fonts:
        route.abort()
    page.unroute_all()
    page.evaluate("() => held.forEach(run => run())")
    page.wait_for_load_state("load")
    until(page, EXPLORERS_DRAWN)
    until(page, "!document.querySelector('.explorer-nearest [data-old]')")
    frames(page, DRAWN)
    known, moved = page.evaluate(JS.MOVED)
    assert known > 20
    return moved


def open_page(page, address: str) -> None:
    """Go to `address`, come past everything that loads when it is near, and wait until it is
    drawn."""
    page.goto(address, wait_until="load")
    come_past(page)


SHOW_FIGURES = """() => document.querySelectorAll(".answer:has(.plotly-figure)")
  .forEach(part => part.removeAttribute("hidden"))"""


def come_past(page) -> None:
    """Come past everything that loads when it is near, and wait until it is drawn."""
    page.evaluate(SHOW_FIGURES)  # those of a lab wait for a prediction
    if page.locator(LOADED_WHEN_NEAR).count():
        scroll_through(page)
    until(page, "!document.querySelector('.plotly-figure:not(.drawn):not(.failed)')")
    until(page, "[...document.querySelectorAll('.explorer')].every(card => card.dataset.ready)")


def open_all(page):
    """Unfold everything, and wait for what is fetched when it is asked for: equations of explorers,
    collectives of steppers."""
    page.evaluate(JS.OPEN_ALL)
    page.evaluate(JS.ASK_STEPPERS)
    until(
        page,
        "!document.querySelector('.explorer.live .explorer-why:not(:has(.explorer-equations))')",
    )


WHEN_READY = """addEventListener("explorer:ready", event => {
  event.target.dataset.readyWhile = document.readyState;
}, true)"""
# Whatever is not written before a card's own script is there, such as `defer`, is late.
LATE = """[...document.querySelectorAll(".explorer")]
  .filter(card => card.dataset.readyWhile !== "loading")
  .map(card => `${card.id} was ready while ${card.dataset.readyWhile}`)"""
EXPLORERS_DRAWN = """[...document.querySelectorAll('.explorer-drawing svg')].every(
  svg => svg.hasAttribute('width') || !svg.checkVisibility())"""


def stop_clock(page):
    """Reload the page and stop its clock: from then on timers of the page run only while the test
    calls `page.clock.run_for(milliseconds)`, however busy the machine is."""
    page.clock.install(time=0)
    page.reload()
    until(page, EXPLORERS_DRAWN)
    page.clock.pause_at(3600)


def new_context(browser, **options):
    """A reader who wants no motion, so that no colour is caught half-way."""
    return browser.new_context(
        **{"viewport": DESKTOP, "reduced_motion": "reduce", "color_scheme": "light", **options}
    )


@contextmanager
def opener_of_pages(browser):
    """opened(address, **options of the browser's context): a page there, with a `watch`."""
    with ExitStack() as stack:

        def opened(address="about:blank", **options):
            page = stack.enter_context(new_context(browser, **options)).new_page()
            page.watch = Watch.of(page)
            page.goto(address)
            return page

        yield opened


# What there is to see and set of a page's explorers, and which of their parts are folded.
AS_OPENED = """() => {
  const article = document.querySelector("article");
  return [article.outerHTML, ...[...article.querySelectorAll("input, select")].map(
    control => control.type === "radio" ? control.checked : control.value)].join("|");
}"""
REMEMBER = f"""() => {{
  window.asOpened = ({AS_OPENED})();
  window.folds = [...document.querySelectorAll("article details")].map(
    part => [part, part.open, part.getAttribute("name")]);
}}"""
# Brings back what a reader has changed; whether all is as it was when the page was opened.
BRING_BACK = (
    f"async () => {{ {FRAME}"
    + """
  for (const reset of document.querySelectorAll("[data-explorer] .explorer-reset")) reset.click();
  for (const [part, open, name] of window.folds) {
    if (name !== null) part.setAttribute("name", name);
    part.open = open;
  }
  history.replaceState(null, "", location.pathname);
  document.activeElement.blur();
  scrollTo(0, 0);
  for (let k = 0; k < 4; k++) {
    if ((AS_OPENED)() === window.asOpened) return true;
    await frame();
  }
  return false;
}""".replace("AS_OPENED", AS_OPENED, 1)
)


class Readers:
    """Readers who come to pages, one after another. A window of its own costs a browser up to a
    second, so a reader may come `again`: one who was on other pages of the folder before, and has
    the eyes and the window of the start again."""

    def __init__(self, browser):
        self.browser, self.idle = browser, {}

    @contextmanager
    def reader(self, address: str, again: bool, **options):
        """A page of a context with these options, at `address`; its `watch` is a `Watch`. Who comes
        again to explorers stays where all can be brought back to what it was."""
        kind = json.dumps([address.rpartition("/")[0], options], sort_keys=True)
        page = self.idle.pop(kind, None) if again else None
        if page is None:
            page = new_context(self.browser, **options).new_page()
            page.watch = Watch.of(page)
        page.watch.forget()
        if page.url.partition("#")[0] != address or not page.evaluate(BRING_BACK):
            page.goto("about:blank")
            page.goto(address)
            if options.get("java_script_enabled", True):
                until(page, EXPLORERS_DRAWN)
                page.evaluate(REMEMBER)
        yield page
        if not again:
            page.context.close()
            return
        page.set_viewport_size(options.get("viewport", DESKTOP))
        page.emulate_media(media="null")
        page.mouse.move(0, 0)
        self.idle[kind] = page


def axe_findings(page, looks: dict | None = None) -> list[str]:
    """Findings on the page as it is now, a sentence each; at most five for one rule. `looks` counts
    the looks seen on other pages in the same way, and then those of this page."""
    looks = {} if looks is None else looks
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
        page.evaluate("axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]})")
    here, marked, counts = page.evaluate(JS.MARK_LOOKS, looks)
    assert here, "a page has texts"
    looks |= counts
    violations = []

    def run(seen="", **what):
        # else axe fetches style sheets, which a file may not
        options = {"resultTypes": ["violations"], "preload": False, **what}
        if seen:
            page.evaluate(JS.HIDE_OTHERS, seen)
        found = page.evaluate(
            "async options => (await axe.run('html', options)).violations", options
        )
        violations.extend(found)
        page.evaluate(JS.SHOW_OTHERS)

    others = (*COLOUR_RULES, *SIZE_RULES, "region")
    run(rules=dict.fromkeys(others, {"enabled": False}))
    if page.evaluate(JS.SMALL_TARGETS, TARGETS):
        run(TARGETS, runOnly=SIZE_RULES)
    if marked:
        run(LOOKS, runOnly=COLOUR_RULES)
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:160]} — "
        + "; ".join(check["message"] for check in [*node["any"], *node["all"], *node["none"]])[:200]
        for violation in violations
        if violation["impact"] in GRAVE or WCAG & {*violation["tags"]} or violation["id"] in ALSO
        for node in violation["nodes"][:5]
        if not (violation["id"] in ALSO and "<math" in node["html"])  # axe does not hear formulas
    ]


def in_every_way(context, address: str, looks: dict, inert="") -> dict[str, list[str]]:
    """Findings of axe at `address` in both colours, on a phone and on a desk, everything unfolded:
    {"dark at 390 px": findings, ...}; and {"by keyboard": what `walk` finds}. `looks` remembers
    those of the pages before."""
    page, found = context.new_page(), {}
    page.set_viewport_size(PHONE)
    open_page(page, address)
    values = page.evaluate(VALUES)
    open_all(page)
    for window in (PHONE, DESKTOP):
        page.set_viewport_size(window)
        scroll_through(page)
        for mode in ("dark", "light"):
            in_colours(page, mode)
            way = f"{mode} at {window['width']} px"
            found[way] = axe_findings(page, looks.setdefault(way, {}))
    found["by keyboard"] = walk(page, values, EXPLORER_IDS, inert)
    page.close()
    return found


def visitor(context):
    """A page that visits one address after another: a new one each time costs more than a look."""
    page = context.new_page()
    page.watch = Watch.of(page)
    page.add_init_script(WHEN_READY)
    return page


def visit(
    page,
    address: str,
    mode: str,
    looks: dict | None = None,
    inert="",
    thorough: bool = True,
    printed: bool = True,
) -> Visit:
    """Let a `visitor` open the page at `address` in the colours of a mode and look at it: its first
    screen, on a phone, on a desktop, on paper; axe and the Tab key only where `thorough`, desktop
    and paper where `printed`. `looks` remembers how often axe has seen texts of a look; `inert`
    finds what Tab need not go through."""
    page.goto("about:blank")
    page.watch.forget()
    page.set_viewport_size({**DESKTOP, "height": 900})
    page.emulate_media(media="screen", color_scheme=mode)
    page.goto(address, wait_until="load")
    desk = page.evaluate(JS.FIRST_SCREEN)
    page.set_viewport_size(PHONE)
    frames(page, DRAWN)
    come_past(page)
    screens = [page.evaluate(JS.FIRST_SCREEN), desk]
    late, collisions = page.evaluate(LATE), page.evaluate(JS.COLLISIONS)
    values, answers = page.evaluate(VALUES), page.evaluate(JS.ANSWERS)
    open_all(page)
    phone = page.evaluate(JS.BEYOND)
    axe = axe_findings(page, looks) if thorough else []
    icons = page.eval_on_selector_all("link[rel~=icon]", "links => links.map(link => link.href)")
    blocks, keyboard, paper = [], [], []
    if printed:
        page.set_viewport_size(DESKTOP)
        until(page, ONLY_WIDE_BOXES_HAVE_STOPS)
        blocks = page.evaluate(JS.BLOCKS)
        keyboard = walk(page, values, EXPLORER_IDS, inert) if thorough else []
        on_paper(page, color_scheme="dark")  # nobody scrolls through a page before it is printed
        for script in (JS.BEYOND, JS.PAPER_PROBLEMS, JS.EXPLORERS_AT_REST):
            paper += page.evaluate(script)
    return Visit(
        *(deepcopy(page.watch), blocks, icons, late, axe, screens, answers),
        *(phone, collisions, keyboard, paper),
    )


def in_colours(page, mode: str) -> None:
    """Set the system to "light" or "dark" colours, and wait until the page follows."""
    page.emulate_media(color_scheme=mode)
    until(page, "mode => document.documentElement.dataset.theme === mode", mode)
    until(page, "!document.querySelector('.plotly-figure:not(.drawn):not(.failed)')")


def without_scripts(page, address: str, blocks: list[str]) -> list[str]:
    """The faults at `address` on a `page` without JavaScript; `blocks` is what there is to read
    with it."""
    page.goto(address, wait_until="load")
    page.evaluate(JS.OPEN_ALL)
    still = set(page.evaluate(JS.BLOCKS))
    missing = [
        f"only a script shows: {block[:80]}" for block in blocks if block and block not in still
    ]
    found = missing[:8] + page.evaluate(JS.EXPLORERS_AT_REST) + page.evaluate(JS.NO_SCRIPT_PROBLEMS)
    return found


def lines(problems: dict[str, list[str]]) -> str:
    """Problems by page as text for a failing test; "" where there are none."""
    return "".join(
        f"\n{path}" + "".join(f"\n    {problem}" for problem in found)
        for path, found in problems.items()
        if found
    )


def page_paths(folder: Path) -> list[str]:
    """Every page of the built book in `folder`, as paths from there."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.html")
        if "_static" not in path.parts
    )
