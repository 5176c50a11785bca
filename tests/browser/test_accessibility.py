"""Readers who have no pointer: the keyboard alone. What axe-core finds is in test_pages.py, which
has the visits."""

from conftest import SPOILED_PAGE
from visit import lines, new_context, open_all, open_page

from shardlab.show.explorers import EXPLORERS

# Numbers everything that can be reached and remembers how it looks without focus. A formula sheet
# has hundreds of links that nothing tells apart: three of a kind are walked to, the others are
# taken out of the order.
NUMBER_CONTROLS = """() => {
  let count = 0;
  const alike = {}, kind = node => node.tagName + node.className;
  for (const node of document.querySelectorAll(
      "a[href], button, input:not([type=hidden]), select, textarea, summary, " +
      "[tabindex='0'], [contenteditable=true]")) {
    const box = node.getBoundingClientRect();
    if (node.disabled || node.closest("[inert]") || !box.width
      || !node.checkVisibility({visibilityProperty: true})) continue;
    if (node.type === "radio" && !node.checked) continue; // arrow keys go there, Tab does not
    if (node.matches("a[href]:not([tabindex])")) {
      const link = kind(node) + " in " + kind(node.parentNode);
      alike[link] = (alike[link] || 0) + 1;
      if (alike[link] > 3) { node.tabIndex = -1; continue; }
    }
    const style = getComputedStyle(node);
    node.dataset.walk = count++;
    node.dataset.unfocused = style.outlineStyle + style.boxShadow + style.borderColor
      + style.backgroundColor;
  }
  return count;
}"""

# What has the focus: {walk, name, seen, inView, id, kind, value, card}; `id` is its card's, and
# `card` is all that card shows. Null for the page itself.
FOCUSED = """() => {
  const node = document.activeElement;
  if (!node || node === document.body || node === document.documentElement) return null;
  const style = getComputedStyle(node), box = node.getBoundingClientRect(),
    card = node.closest(".explorer");
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return {
    walk: node.dataset.walk === undefined ? null : +node.dataset.walk,
    name: node.outerHTML.slice(0, 120),
    seen: outlined || style.outlineStyle + style.boxShadow + style.borderColor
      + style.backgroundColor !== node.dataset.unfocused,
    inView: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    id: card ? card.id : "",
    kind: card ? (node.type || node.tagName).toLowerCase() : "",
    value: String(node.tagName === "SUMMARY" ? node.parentNode.open : node.value),
    card: card
      && [...card.querySelectorAll("svg, .explorer-words, .explorer-error, .explorer-python")]
        .map(part => part.outerHTML).join(""),
  };
}"""

VALUES = """() => [...document.querySelectorAll(".explorer :is(input, select)")].map(
  control => control.type === "radio" ? control.checked : control.value)"""

# The keys that move a control of each kind. A choice may show what was shown before (two GPUs with
# the same memory): then the next.
KEYS = {
    "range": ["ArrowRight", "ArrowLeft"],
    "text": ["ArrowUp", "ArrowDown"],
    "radio": ["ArrowRight", "ArrowLeft"],
    "select-one": [*["ArrowDown"] * 4, *["ArrowUp"] * 8],
}


# Each control is moved from where the card starts: far out, a move may change nothing that one
# sees.
AS_BEFORE = """walk => {
  const node = document.querySelector(`[data-walk="${walk}"]`);
  if (node.matches("input, select")) node.closest(".explorer")
    .querySelector(".explorer-reset").click();
  node.focus();
}"""
CHOOSE_ANOTHER = """() => {
  const card = document.activeElement.closest(".explorer"), menu = card.querySelector("select");
  if (!menu) { card.querySelector("[type=radio]:not(:checked)").click(); return; }
  menu.selectedIndex = menu.options.length - 1;
  menu.dispatchEvent(new Event("change"));
}"""


def moved_by_keys(page, focused) -> list[str]:
    """Move the explorer's control that has the focus by keys; what is wrong with that."""
    name, values = focused["name"], {focused["value"]}
    if focused["kind"] == "summary":
        page.keyboard.press("Enter")
        values.add(page.evaluate(FOCUSED)["value"])
        page.keyboard.press("Enter")
        return [] if len(values) == 2 else [f"does not fold: {name}"]
    for key in KEYS.get(focused["kind"], ()):
        page.keyboard.press(key)
        after = page.evaluate(FOCUSED)
        values.add(after["value"])
        # the card alone may change later, when a ghost goes
        if len(values) > 1 and after["card"] != focused["card"]:
            return []
    if focused["kind"] not in KEYS:
        return []
    return [
        f"no key moves {name}" if len(values) == 1 else f"nothing is drawn or said anew: {name}"
    ]


def walk(page, address: str, moved_elsewhere=(), inert="") -> list[str]:
    """Go through the page at `address` with the Tab key, moving every control of its cards, but for
    the cards with an id in `moved_elsewhere`; what is wrong on the way. What the selector `inert`
    finds is left out."""
    open_page(page, address)
    before = page.evaluate(VALUES)
    open_all(page)
    if inert:
        page.eval_on_selector_all(inert, "parts => parts.forEach(part => { part.inert = true; })")
    count = page.evaluate(NUMBER_CONTROLS)
    names = page.eval_on_selector_all(
        "[data-walk]", "nodes => nodes.map(node => node.outerHTML.slice(0, 120))"
    )
    reached, problems = set(), []
    for _ in range(count + 10):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
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
            page.evaluate(AS_BEFORE, focused["walk"])
        if "explorer-reset" in focused["name"]:
            page.evaluate(CHOOSE_ANOTHER)
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


# ---------------------------------------------------------------- the book


# The same on every page.
CONTENTS = ".bd-sidebar-primary, .bd-header"


def test_the_keyboard_alone_reaches_and_moves_everything(browser, homes, paths):
    """The controls of explorers are reached here, and moved in test_explorer.py. The book's
    contents are gone through on the first page.

    Must catch: tabindex="-1" on a button, `outline: none`, a slider that swallows arrow keys, a
    trap for Tab."""
    explorers = {f"explorer-{name}" for name in EXPLORERS}
    problems = {}
    for path in paths:
        with new_context(browser) as context:
            page, inert = context.new_page(), CONTENTS if problems else ""
            problems[path] = walk(page, f"{homes['file']}/{path}", explorers, inert)
    assert not lines(problems)


# ---------------------------------------------------------------- what the tests above can see


SPOIL_KEYS = """() => {
  document.querySelector(".explorer [type=range]").addEventListener("keydown",
    event => { if (event.key !== "Tab") event.preventDefault(); });
  document.querySelector(".explorer select").addEventListener("change",
    event => event.stopImmediatePropagation(), true);
  document.querySelector(".explorer-reset").addEventListener("click",
    event => event.stopImmediatePropagation(), true);
}"""


def test_a_spoiled_walk_is_seen(browser, spoiled):
    """Must catch: `walk` no longer noticing what it is for."""
    with new_context(browser) as context:
        page = context.new_page()
        page.add_init_script(f"addEventListener('load', {SPOIL_KEYS})")
        problems = "\n".join(walk(page, spoiled))
    for words in (
        'Tab does not reach <button tabindex="-1"',
        'see the focus on <button class="blind"',
        'no key moves <input type="range"',
        "nothing is drawn or said anew: <select",
        "Reset does not bring back",
    ):
        assert words in problems, SPOILED_PAGE
