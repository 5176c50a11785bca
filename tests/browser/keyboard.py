"""A page as a reader meets it who has no pointer: the keyboard alone."""

from page_scripts import page_scripts

JS = page_scripts("keyboard")


# What the controls of cards hold; which picture is in front is no value.
VALUES = """() => [...document.querySelectorAll(
  ".explorer :is(input, select):not(.explorer-tabs *)")].map(
  control => control.type === "radio" ? control.checked : control.value)"""

# The keys that move a control of each kind. A choice may show what was shown before (two GPUs with
# the same memory, two orders that both balance a ring): then the next.
KEYS = {
    "range": ["ArrowRight", "ArrowLeft"],
    "text": ["ArrowUp", "ArrowDown"],
    "radio": [*["ArrowRight"] * 2, "ArrowLeft"],
    "select-one": [*["ArrowDown"] * 4, *["ArrowUp"] * 8],
}


def moved_by_keys(page, focused) -> list[str]:
    """Move the explorer's control that has the focus by keys; what is wrong with that."""
    name, values = focused["name"], {focused["value"]}
    if focused["kind"] == "summary":
        page.keyboard.press("Enter")
        values.add(page.evaluate(JS.FOCUSED, [])["value"])
        page.keyboard.press("Enter")
        return [] if len(values) == 2 else [f"does not fold: {name}"]
    for key in KEYS.get(focused["kind"], ()):
        page.keyboard.press(key)
        after = page.evaluate(JS.FOCUSED, [])
        values.add(after["value"])
        # the card alone may change later, when a ghost goes
        if len(values) > 1 and after["card"] != focused["card"]:
            return []
    if focused["kind"] not in KEYS:
        return []
    return [
        f"no key moves {name}" if len(values) == 1 else f"nothing is drawn or said anew: {name}"
    ]


def walk(page, before, moved_elsewhere=(), inert="") -> list[str]:
    """Go through an open page with the Tab key, moving every control of its cards, but for the
    cards with an id in `moved_elsewhere`; what is wrong on the way. `before`: the VALUES with which
    it was opened. What the selector `inert` finds is left out."""
    if inert:
        page.eval_on_selector_all(inert, "parts => parts.forEach(part => { part.inert = true; })")
    page.evaluate(JS.FROM_THE_START)
    count = page.evaluate(JS.NUMBER_CONTROLS)
    names = page.eval_on_selector_all(
        "[data-walk]", "nodes => nodes.map(node => node.outerHTML.slice(0, 120))"
    )
    reached, problems = set(), []
    for _ in range(count + 10):
        page.keyboard.press("Tab")
        focused = page.evaluate(JS.FOCUSED, [*moved_elsewhere])
        if focused is None or focused["walk"] in reached:
            break
        if focused["walk"] is None:  # it came with a key: Python to copy, an error
            continue
        reached.add(focused["walk"])
        if not focused["seen"]:
            problems.append(f"one does not see the focus on {focused['name']}")
        if not focused["inView"]:
            problems.append(f"the focus is out of sight on {focused['name']}")
        if focused["id"] in moved_elsewhere:
            continue
        if focused["kind"]:
            problems += moved_by_keys(page, focused)
            page.evaluate(JS.AS_BEFORE, focused["walk"])
        if "explorer-reset" in focused["name"]:
            page.evaluate(JS.CHOOSE_ANOTHER)
            page.keyboard.press("Enter")
            if (now := page.evaluate(VALUES)) != before:
                problems.append(f"Reset does not bring back what was there: {before}, {now}")
        if "explorer-copy" in focused["name"]:
            page.keyboard.press("Enter")
            if not page.locator(".explorer-python:visible").count():
                problems.append("Copy as Python shows no Python")
    return (
        problems + [f"Tab does not reach {names[k]}" for k in range(count) if k not in reached][:8]
    )
