"""A page as a reader meets it who has no pointer: the keyboard alone."""

# Numbers everything that can be reached and remembers how it looks without focus. A formula sheet
# has hundreds of links that nothing tells apart, a chapter dozens of boxes of code and of buttons
# that copy it: outside cards three of a kind are walked to, the others are taken out of the order.
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
    const many = ":is(a[href], summary, .copy-button):not([tabindex]), [tabindex='0']";
    if (node.matches(many) && !node.closest(".explorer")) {
      const here = kind(node) + " in " + kind(node.parentNode);
      alike[here] = (alike[here] || 0) + 1;
      if (alike[here] > 3) { node.tabIndex = -1; continue; }
    }
    const style = getComputedStyle(node);
    node.dataset.walk = count++;
    node.dataset.unfocused = style.outlineStyle + style.boxShadow + style.borderColor
      + style.backgroundColor;
  }
  return count;
}"""

# What has the focus: {walk, name, seen, inView, id, kind, value, card}; `id` is its card's, and
# `card` is all that card shows, unless it is moved elsewhere. Null for the page itself.
FOCUSED = """moved_elsewhere => {
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
    kind: card && !node.closest(".explorer-tabs") ? (node.type || node.tagName).toLowerCase() : "",
    value: String(node.tagName === "SUMMARY" ? node.parentNode.open : node.value),
    card: card && !moved_elsewhere.includes(card.id)
      && [...card.querySelectorAll("svg, .explorer-words, .explorer-error, .explorer-python")]
        .map(part => part.outerHTML).join(""),
  };
}"""

# Tab goes on from where the last click or the last focus was.
FROM_THE_START = """() => {
  document.activeElement.blur();
  getSelection().setPosition(document.body, 0);
}"""

# What the controls of cards hold; which picture is in front is no value.
VALUES = """() => [...document.querySelectorAll(
  ".explorer :is(input, select):not(.explorer-tabs *)")].map(
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
        values.add(page.evaluate(FOCUSED, [])["value"])
        page.keyboard.press("Enter")
        return [] if len(values) == 2 else [f"does not fold: {name}"]
    for key in KEYS.get(focused["kind"], ()):
        page.keyboard.press(key)
        after = page.evaluate(FOCUSED, [])
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
    page.evaluate(FROM_THE_START)
    count = page.evaluate(NUMBER_CONTROLS)
    names = page.eval_on_selector_all(
        "[data-walk]", "nodes => nodes.map(node => node.outerHTML.slice(0, 120))"
    )
    reached, problems = set(), []
    for _ in range(count + 10):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED, [*moved_elsewhere])
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
