// Run on a page by keyboard.py: each constant is one script.

// Numbers everything that can be reached and remembers how it looks without focus. A formula sheet
// has hundreds of links that nothing tells apart, a chapter dozens of boxes of code and of buttons
// that copy it: outside cards three of a kind are walked to, the others are taken out of the order.
const NUMBER_CONTROLS = () => {
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
};

// What has the focus: {walk, name, seen, inView, id, kind, value, card}; `id` is its card's, and
// `card` is all that card shows, unless it is moved elsewhere. Null for the page itself.
const FOCUSED = moved_elsewhere => {
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
};

// Tab goes on from where the last click or the last focus was.
const FROM_THE_START = () => {
  document.activeElement.blur();
  getSelection().setPosition(document.body, 0);
};

// Each control is moved from where the card starts: far out, a move may change nothing that one
// sees.
const AS_BEFORE = walk => {
  const node = document.querySelector(`[data-walk="${walk}"]`);
  if (node.matches("input, select")) node.closest(".explorer")
    .querySelector(".explorer-reset").click();
  node.focus();
};

const CHOOSE_ANOTHER = () => {
  const card = document.activeElement.closest(".explorer"), menu = card.querySelector("select");
  if (!menu) { card.querySelector("[type=radio]:not(:checked)").click(); return; }
  menu.selectedIndex = menu.options.length - 1;
  menu.dispatchEvent(new Event("change"));
};
