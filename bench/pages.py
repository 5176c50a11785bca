"""Measurements in a real browser: the first input, redraws, exactness, and what a page weighs."""

import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

from coursekit.recordings.races import Result

LOADS = 9
SCROLLED_LOADS = 3  # of them are scrolled through
SLOWED = (1, 4)  # CPU as it is, and slowed down four times
READY_MS = {1: 400, 4: 1200}
LATER_TASK_MS = {1: 100, 4: 400}
REDRAW_MS = {1: 4, 4: 16}
REDRAWS = 200
# speed of the CPU, equations open
REDRAWN = ((1, False), (1, True), (4, False))
PAGE_BYTES = 200_000
DESKTOP = {"width": 1280, "height": 800}

# Runs before the page's own scripts. When the explorer reports ready it moves the first slider at
# once, and notes when the frame that shows it has been painted: a message posted in the frame's
# callback arrives after the painting.
FIRST_INPUT = """
  window.bench = {tasks: [], shift: 0};
  new PerformanceObserver(list => bench.tasks.push(...list.getEntries()
    .map(task => [task.startTime, task.duration])))
    .observe({type: "longtask", buffered: true});
  new PerformanceObserver(list => list.getEntries()
    .forEach(entry => { bench.shift += entry.value; }))
    .observe({type: "layout-shift", buffered: true});
  addEventListener("explorer:ready", event => {
    const slider = event.target.querySelector("[type=range]"),
      words = () => event.target.querySelector(".explorer-words").textContent;
    if (bench.ready || !slider) return; // the first that has a slider
    bench.ready = performance.now();
    const before = words();
    slider.value = +slider.value + (+slider.value < +slider.max ? 1 : -1);
    slider.dispatchEvent(new Event("input", {bubbles: true}));
    bench.changed = words() !== before;
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => { bench.painted = performance.now(); };
      channel.port2.postMessage(0);
    });
  });
"""

SCROLL = """async () => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  for (let y = 0; y < document.scrollingElement.scrollHeight; y += innerHeight / 2) {
    scrollTo(0, y); await frame(); }
  await new Promise(done => setTimeout(done, 300));
}"""

# One input on each switch in turn, or on each slider, or on each list. `handled` is what the script
# takes; `redrawn` has the style and layout that follow, which are forced; `painted` is
# the next frame, which waits for the screen and so cannot be below 16 ms for long. Inputs that are
# refused draw nothing: they are counted, not timed, and Reset makes the values valid again.
REDRAW = """async ([id, count, why]) => {
  const card = document.getElementById(id);
  const shown = kind => [...card.querySelectorAll(kind)].filter(one => one.checkVisibility()),
    sliders = shown("[type=range]"), lists = shown("select"), switches = shown("[role=switch]"),
    controls = switches.length ? switches : sliders.length ? sliders : lists,
    list = !sliders.length && !switches.length;
  if (why) card.querySelector(".explorer-why").open = true;
  while (why && !card.querySelector(".explorer-numbers")) 
    await new Promise(done => setTimeout(done, 20));
  card.scrollIntoView();
  const frame = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel(); channel.port1.onmessage = done;
    channel.port2.postMessage(0); }));
  const handled = [], redrawn = [], painted = [];
  let refused = 0;
  await frame();
  for (let k = 0; redrawn.length < count; k++) {
    const control = controls[k % controls.length],
      most = list ? control.options.length - 1 : +control.max,
      now = list ? control.selectedIndex : +control.value, next = (7 * k + 3) % (most + 1),
      other = next === now ? (next + 1) % (most + 1) : next;
    if (list) control.selectedIndex = other; else if (!switches.length) control.value = other;
    const start = performance.now();
    if (switches.length) control.click();
    else control.dispatchEvent(new Event(list ? "change" : "input", {bubbles: true}));
    const script = performance.now() - start;
    card.getBoundingClientRect(); document.body.offsetHeight;
    const layout = performance.now() - start;
    await frame();
    if (card.classList.contains("stale")) { refused++;
      card.querySelector(".explorer-reset").click(); await frame(); continue; }
    handled.push(script); redrawn.push(layout); painted.push(performance.now() - start);
  }
  return {handled, redrawn, painted, refused};
}"""


class Reader:
    """Opens pages without a cache, at one speed of the CPU, each in a context of its own."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, address: str, slowed: int, script: str = ""):
        """(context, page, session of the browser's protocol) after the load event."""
        context = self.browser.new_context(viewport=DESKTOP, bypass_csp=True)
        page = context.new_page()
        if script:
            page.add_init_script(script)
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        session.send("Emulation.setCPUThrottlingRate", {"rate": slowed})
        page.goto(address, wait_until="load")
        return context, page, session


def quantile(values, share: float) -> float:
    """The value below which about `share` of all lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure_loads(
    reader: Reader, pages: dict[str, tuple[Path, bool]], loads: int = LOADS
) -> list[Result]:
    """From the start of the navigation to the repaint after an input sent when the explorer reports
    ready; and what comes later.

    `pages`: name -> (file, whether the figures hold for it). Pages and speeds take turns, so that
    all meet the same noise.
    """
    seen = defaultdict(lambda: defaultdict(list))
    for turn in range(loads):
        for slowed in SLOWED:
            for name, (path, _) in pages.items():
                context, page, session = reader.open(path.as_uri(), slowed, FIRST_INPUT)
                page.wait_for_function("bench.painted")
                page.wait_for_timeout(800 + 400 * slowed)  # tasks that come later
                metrics = {
                    entry["name"]: entry["value"]
                    for entry in session.send("Performance.getMetrics")["metrics"]
                }
                page.evaluate("bench.scrolled = performance.now()")
                if turn < SCROLLED_LOADS:
                    page.evaluate(SCROLL)
                noted = page.evaluate("bench")
                if not noted["changed"]:
                    raise RuntimeError(f"{name}: the input changed nothing")
                contentful = page.evaluate(
                    "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime"
                    " || 0"
                )
                context.close()
                one = seen[name, slowed]
                one["ready"].append(noted["ready"])
                one["painted"].append(noted["painted"])
                one["contentful"].append(contentful)
                one["busy"].append(1000 * metrics["TaskDuration"])
                one["shift"].append(noted["shift"])
                later = [
                    (start, duration)
                    for start, duration in noted["tasks"]
                    if start >= noted["painted"]
                ]
                one["later"].append(
                    max(
                        (duration for start, duration in later if start < noted["scrolled"]),
                        default=0,
                    )
                )
                one["scrolling"].append(
                    max(
                        (duration for start, duration in later if start >= noted["scrolled"]),
                        default=0,
                    )
                )
    results = []
    for name, (_, held) in pages.items():
        for slowed in SLOWED:
            one, speed = (
                seen[name, slowed],
                f"CPU {slowed}x slower" if slowed > 1 else "CPU as it is",
            )
            spread = f"{min(one['painted']):.0f} to {max(one['painted']):.0f}, {loads} loads"
            first = [
                ("first content painted", "contentful", None, ""),
                ("explorer ready", "ready", None, ""),
                (
                    "repaint after the first input",
                    "painted",
                    READY_MS[slowed] if held else None,
                    spread,
                ),
            ]
            results += [
                Result(
                    "load, from file://",
                    f"{name}, {speed}: {what}",
                    round(median(one[key])),
                    "ms",
                    most,
                    note,
                )
                for what, key, most, note in first
            ]
            after = [
                (
                    "longest later task (of any load)",
                    "later",
                    LATER_TASK_MS[slowed] if held else None,
                ),
                ("longest task while scrolling through", "scrolling", None),
            ]
            if slowed == 1:
                results += [
                    Result(
                        "load, from file://",
                        f"{name}: the main thread's CPU time, all in all",
                        round(median(one["busy"])),
                        "ms",
                        None,
                        "depends little on what else the machine does",
                    ),
                    Result(
                        "load, from file://",
                        f"{name}: layout shift",
                        round(max(one["shift"]), 4),
                        "",
                    ),
                ]
            results += [
                Result(
                    "load, from file://",
                    f"{name}, {speed}: {what}",
                    round(max(one[key])),
                    "ms",
                    most,
                    "" if max(one[key]) else "none reaches 50 ms, from which on the browser counts",
                )
                for what, key, most in after
            ]
    return results


def busy_seconds(session) -> float:
    """CPU time that the page's main thread has spent on scripts, style and layout."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    kinds = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
    return sum(entry["value"] for entry in metrics if entry["name"] in kinds)


def measure_redraws(reader: Reader, cards: dict[str, Path]) -> list[Result]:
    """Median and 95th percentile of one redraw, the median and the worst of all cards, and which
    are above the figure; `cards`: the element's id -> a page it stands on. Folded sliders stay
    folded."""
    results, slow = [], {speed: [] for speed in SLOWED}
    medians, busiest = {speed: {} for speed in SLOWED}, {}
    for ident, path in cards.items():
        name, explains = ident.removeprefix("explorer-"), ident.startswith("explorer-")
        for slowed, why in REDRAWN:
            if why and not explains:
                continue  # a stepper has no equations
            context, page, session = reader.open(path.as_uri(), slowed)
            page.evaluate(REDRAW, [ident, 30, why])  # the first runs are compiled
            before = busy_seconds(session)
            noted = page.evaluate(REDRAW, [ident, REDRAWS, why])
            busy = 1000 * (busy_seconds(session) - before) / (REDRAWS + noted["refused"])
            context.close()
            speed = f"CPU {slowed}x slower" if slowed > 1 else "CPU as it is"
            label = f"{name}, {speed}" + (", equations open" if why else "")
            note = f"{REDRAWS} inputs; {noted['refused']} more were refused, not timed"
            if not why:
                medians[slowed][name] = quantile(noted["redrawn"], 0.5)
                if medians[slowed][name] > REDRAW_MS[slowed]:
                    slow[slowed].append(name)
                if slowed == 1:
                    busiest[name] = busy
            for what, key, share, most in (
                ("script, median", "handled", 0.5, None),
                ("script, style and layout, median", "redrawn", 0.5, REDRAW_MS[slowed]),
                ("script, style and layout, 95 %", "redrawn", 0.95, None),
                ("painted on the screen, median", "painted", 0.5, None),
            ):
                results.append(
                    Result(
                        "redraw",
                        f"{label}: {what}",
                        round(quantile(noted[key], share), 2),
                        "ms",
                        most if not why else None,
                        note if key == "redrawn" and share == 0.5 else "",
                    )
                )
            if slowed == 1:
                results.append(
                    Result(
                        "redraw",
                        f"{label}: CPU of the main thread, script, style and layout, mean",
                        round(busy, 2),
                        "ms",
                        REDRAW_MS[slowed] if not why else None,
                        "depends little on what else the machine does",
                    )
                )
    for what, found in (
        *(
            (f"CPU {slowed}x slower" if slowed > 1 else "CPU as it is", medians[slowed])
            for slowed in SLOWED
        ),
        ("CPU of the main thread", busiest),
    ):
        worst = max(found, key=found.get)
        for label, value, note in (
            ("median", median(found.values()), f"of {len(found)} cards"),
            ("worst", found[worst], worst),
        ):
            results.append(
                Result("redraw", f"all cards, {what}: {label}", round(value, 2), "ms", None, note)
            )
    for slowed, names in slow.items():
        limit = f"explorers above {REDRAW_MS[slowed]} ms, CPU {slowed}x slower"
        said = limit if slowed > 1 else f"explorers above {REDRAW_MS[slowed]} ms, CPU as it is"
        note = ", ".join(names) or f"of {len(cards)}"
        results.append(Result("redraw", said, len(names), "", 0, note))
    return results


def cards_of(folder: Path) -> dict[str, Path]:
    """Explorers and steppers of the built book's chapters, by their element's id: a page each."""
    cards = {}
    for path in sorted((folder / "chapters").glob("*.html")):
        for ident in re.findall(
            r'<div class="explorer [^"]*" id="([^"]+)"', path.read_text(encoding="utf-8")
        ):
            cards.setdefault(ident, path)
    return cards


def home_of(name: str, folder: Path) -> Path | None:
    """The first page of the built book with that explorer."""
    return next(
        (
            path
            for path in sorted(folder.rglob("*.html"))
            if f'id="explorer-{name}"' in path.read_text(encoding="utf-8")
        ),
        None,
    )


def measure_exactness(reader: Reader, homes: dict[str, str], folder: Path) -> list[Result]:
    """Differences between the pages' JavaScript and Python's exact integers; the configurations are
    those of the tests."""
    from test_javascript_equals_python import RUN, ask, cases

    from coursekit.formulas import BOOK
    from coursekit.show.explorers import EXPLORERS

    results = []
    for scheme, home in homes.items():
        counted = different = refusals = total = 0
        worst = 0.0
        for name, spec in EXPLORERS.items():
            path = home_of(name, folder)
            if path is None:  # its chapter is not written yet
                continue
            configurations, expected = cases(name)
            context, page, _ = reader.open(f"{home}/{path.relative_to(folder).as_posix()}", 1)
            answers = ask(page, RUN, name, configurations)
            context.close()
            total += len(configurations)
            for python, javascript in zip(expected, answers, strict=True):
                if isinstance(python, str) or isinstance(javascript, str):
                    refusals += 1
                    different += python != javascript
                    continue
                for quantity in (*spec.inputs, *spec.formulas):
                    counted += 1
                    ours, theirs = python[quantity], javascript[quantity]
                    if (BOOK.formulas.get(quantity) or BOOK.quantities[quantity]).whole:
                        different += ours != theirs
                    elif ours != theirs:
                        worst = max(worst, abs(ours - theirs) / max(abs(ours), abs(theirs)))
        note = (
            f"{total:,} configurations of {len(EXPLORERS)} explorers: {counted:,} numbers,"
            f" {refusals:,} refusals"
        )
        results += [
            Result("exact", f"{scheme}: integers and refusals that differ", different, "", 0, note),
            Result("exact", f"{scheme}: largest relative difference of a float", worst, "", 1e-12),
        ]
    return results


# ---------------------------------------------------------------- what a page weighs

KINDS = (
    "HTML",
    "our CSS",
    "our JavaScript",
    "theme's CSS",
    "theme's JavaScript",
    "text fonts",
    "mathematics font",
    "plotly.js",
    "other",
)


def kind_of(path: Path, our_files: set[str]) -> str:
    ours = path.name in our_files
    if path.suffix == ".html":
        return "HTML"
    if path.suffix == ".css":
        return "our CSS" if ours else "theme's CSS"
    if path.suffix == ".js":
        return (
            "plotly.js"
            if path.name.startswith("plotly")
            else "our JavaScript"
            if ours
            else "theme's JavaScript"
        )
    if path.suffix == ".woff2":
        return "mathematics font" if "math" in path.name else "text fonts"
    return "other"


def weigh(
    browser, folder: Path, paths: list[str], our_files: set[str]
) -> dict[str, dict[str, int]]:
    """Page -> kind -> bytes of the files that the page loads, scrolled to its end."""
    from visit import Watch, new_context, open_page

    weights = {}
    with new_context(browser) as context:
        for path in paths:
            page = context.new_page()
            watch = Watch.of(page)
            open_page(page, (folder / path).as_uri())
            page.close()
            weights[path] = dict.fromkeys(KINDS, 0)
            for address in {
                address.split("?")[0] for address in watch.loaded if address.startswith("file:")
            }:
                file = Path(unquote(urlsplit(address).path))
                weights[path][kind_of(file, our_files)] += file.stat().st_size
    return weights


def measure_blocking(reader: Reader, pages: dict[str, Path], loads: int = 3) -> list[Result]:
    """For how long a page does not answer while it loads on a CPU slowed down four times: what each
    of its tasks takes beyond 50 ms. The least of all loads, as neighbours only add."""
    results = []
    for name, path in pages.items():
        seen = []
        for _ in range(loads):
            context, page, _ = reader.open(path.as_uri(), SLOWED[-1], FIRST_INPUT)
            page.wait_for_timeout(2400)  # tasks that come later
            tasks = page.evaluate("bench.tasks")
            seen.append((sum(max(0, task - 50) for _, task in tasks), tasks))
            context.close()
        blocked, tasks = min(seen)
        longest = max((task for _, task in tasks), default=0)
        said = f"{len(tasks)} long tasks, the longest {longest:.0f} ms"
        results.append(Result("blocking", f"{name}: CPU x{SLOWED[-1]}", blocked, "ms", 300, said))
    return results


def measure_weight(browser, folder: Path, paths: list[str], our_files: set[str]) -> list[Result]:
    results = []
    for path, kinds in weigh(browser, folder, paths, our_files).items():
        ours = sum(kinds[kind] for kind in ("HTML", "our CSS", "our JavaScript"))
        rest = ", ".join(f"{kind} {size:,}" for kind, size in kinds.items() if size)
        results.append(
            Result(
                "weight", f"{path}: HTML, our CSS and our JavaScript", ours, "B", PAGE_BYTES, rest
            )
        )
    files = [path for path in folder.rglob("*") if path.is_file()]
    results.append(
        Result(
            "weight",
            "the whole built book",
            sum(path.stat().st_size for path in files),
            "B",
            None,
            f"{len(files)} files",
        )
    )
    return results
