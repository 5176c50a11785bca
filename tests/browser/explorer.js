// Run on a page by test_explorer.py: each constant is one script.

// Words of a card, refusals by control, and what boxes and choices hold.
const STATE = root => {
  const rows = [...root.querySelectorAll(".explorer-control")],
    by = (rows, text) => Object.fromEntries(
    rows.map(row => [row.dataset.quantity, text(row)]));
  // the script makes them
  const refused = row => !!row.querySelector(".explorer-error")?.checkVisibility();
  return [[...root.querySelectorAll(".explorer-words p")]
    .map(p => p.textContent.replaceAll("\u00a0", " ")).join(" "),
    by(rows.filter(refused), row => row.querySelector(".explorer-error").textContent),
    by(rows, row => row.querySelector("[type=text]")
      ? row.querySelector("[type=text]").value
      : [...row.querySelectorAll("[type=radio]")].findIndex(button => button.checked))];
};

// What a reader does, move after move, and what `look` sees after each: a message to the browser for
// each of them would take longer than the moves.
const FOLLOW = (root, moves) => moves.map(([what, name, to, of]) => {
  const row = `.explorer-control[data-quantity=${name}]`, tell = (node, ...events) =>
    events.forEach(event => node.dispatchEvent(new Event(event, {bubbles: true})));
  if (what === "reset") root.querySelector(".explorer-reset").click();
  else if (what === "choose") {
    const menu = root.querySelector(`[data-kind=${name}]`);
    menu.value = [...menu.options].find(one => one.value === to || one.label === to).value;
    tell(menu, "input", "change");
  } else {
    const buttons = root.querySelectorAll(`${row} [type=radio]`);
    if (what === "type") {
      const box = root.querySelector(`${row} [type=text]`);
      tell(box, "focus");
      box.value = to;
      tell(box, "input", "change");
    } else if (buttons.length) { buttons[to].checked = true; tell(buttons[to], "change"); }
    else {
      const slider = root.querySelector(`${row} [type=range]`);
      slider.value = to;
      tell(slider, "input", "change");
    }
  }
  dispatchEvent(new Event("beforeprint")); // pictures out of sight are drawn at once
  return [(STATE)(root), (LOOK)(root, of)];
});

// What there is to see of a card, unless the ghost of the picture before is drawn into a picture.
const SEE = root => {
  dispatchEvent(new Event("beforeprint")); // pictures out of sight are drawn at once
  return document.querySelector(".ghosted") ? null : [(STATE)(root),
    [...root.querySelectorAll(".explorer-drawing")].map(place => place.innerHTML)];
};

// Nonsense in a picture or a sentence; texts of pictures; the Python that is copied.
const LOOK = (root, of) => [of === "typed" ? null : (root.innerText
    + [...root.querySelectorAll(".explorer-drawing")].map(place => place.innerHTML).join(""))
    .match(/.{0,40}(NaN|undefined|null|Infinity|\binf\b).{0,40}/),
  of === "drawn" ? (TEXTS)(root) : null, root.querySelector(".explorer-python").textContent];

// [name, strong, then for each path of parts and for the hatch [y, height] where it has a box over
// that name, else [0, 0]]
const COLUMNS = drawing => {
  const boxes = [...drawing.querySelectorAll("path.part, path.over")]
    .map(path => [...path.getAttribute("d").matchAll(
    /M([-\d.]+) ([-\d.]+)h([\d.]+)v([-\d.e]+)H/g)].map(found => found.slice(1).map(Number)));
  return [...drawing.querySelectorAll(".name")].filter(text => text.textContent)
    .map(text => [text.textContent, text.classList.contains("strong"),
    ...boxes.map(path => (path.find(([x, y, wide]) =>
      Math.abs(x + wide / 2 - text.getAttribute("x")) < wide / 2) || [0, 0, 0, 0])
        .filter((_, k) => k % 2))]); };

const MOVE_AND_LOOK = ([slider, comes, waits]) => {
  const card = document.querySelector(".explorer"), look = place => place.innerHTML;
  const pictures = [...card.querySelectorAll(".explorer-drawing")], before = pictures.map(look);
  if (!waits) window.setTimeout = () => 0; // no timer ends
  slider.value = +slider.value === 0 ? 1 : 0;
  slider.dispatchEvent(new Event("input"));
  const moved = () => pictures.map((place, k) => look(place) !== before[k]);
  window.moved = () => moved()[pictures.length - 1];
  const at_once = moved();
  if (comes === "paper") dispatchEvent(new Event("beforeprint"));
  if (comes === "sight") pictures[pictures.length - 1].scrollIntoView();
  return [at_once[0], at_once[pictures.length - 1]];
};

// Uses a control as a reader does, and looks before the page has a moment to do anything else.
const AT_ONCE = (root, [selector, event]) => { const control = root.querySelector(selector);
  if (event === "change") control.dispatchEvent(new Event("input"));
  control.dispatchEvent(new Event(event));
  const ghosts = [...root.querySelectorAll(".ghost")];
  return [root.className, ...ghosts.map(node => node.getAttribute("d") || "")].join(" "); };

const CURVES = drawing => {
  const seen = text => text.textContent,
    numbers = text => (text.match(/-?[\d.]+/g) || []).map(Number);
  return {
    lines: [...drawing.querySelectorAll(".curve")]
      .map(line => line.getAttribute("d") ? numbers(line.getAttribute("d")) : null),
    dashes: [...drawing.querySelectorAll(".curve")].filter(line => line.getAttribute("d"))
      .map(line => line.getAttribute("stroke-dasharray")),
    point: numbers(drawing.querySelector(".marker").getAttribute("d")).slice(0, 2),
    arrow: drawing.querySelector(".marker").getAttribute("d").includes("v14"),
    ticks: [...drawing.querySelectorAll(".tick[text-anchor=end]")].filter(seen)
      .map(text => [text.textContent, +text.getAttribute("y") - 4]),
    texts: [...drawing.querySelectorAll("text")].filter(seen).map(text => text.textContent),
    ghost: drawing.querySelector(".ghost:not(.halo)").getAttribute("d")}; };

// The sum that "Why?" begins with: quantities, and what each opens when it is pressed.
const SUM = root => [...root.querySelectorAll(".explorer-sum > span:not([hidden]) > button")]
  .map(term => {
    if (term.getAttribute("aria-expanded") === "false") term.click();
    const own = [...root.querySelectorAll(".explorer-own li")];
    return [term.dataset.quantity, own.map(line => line.dataset.quantity),
      own[0].querySelector(".explorer-value").textContent];
  });

// Controls with which less than nine tenths of the first picture, or of the sentence, can be seen:
// as they come to the middle of the screen, and as they get the focus from far above.
const OUT_OF_VIEW = async root => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const first = root.querySelector(".explorer-drawing"), found = [];
  const sentence = root.querySelector(".explorer-sentence");
  const share = node => { // of points at which nothing lies over it
    const box = node.getBoundingClientRect(), points = [];
    for (let k = 0; k < 10; k++) for (let j = 0; j < 10; j++)
      points.push([box.left + (k + 0.5) / 10 * box.width, box.top + (j + 0.5) / 10 * box.height]);
    return points.filter(([x, y]) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight
      && node.contains(document.elementFromPoint(x, y))).length / points.length; };
  let most = root.offsetHeight;
  for (const row of root.querySelectorAll(".explorer-menu, .explorer-control")) {
    const group = row.closest("details");
    if (group) group.open = true;
    most = Math.max(most, root.offsetHeight);
    const input = row.querySelector("select, [type=range], :checked");
    const meet = {
      middle: () => row.scrollIntoView({block: "center"}),
      focus: () => { scrollTo(0, 0); input.focus(); }
    };
    for (const how of Object.keys(meet)) {
      document.activeElement.blur();
      meet[how]();
      await frame();
      const seen = [share(first), share(sentence), share(input)];
      if (seen[0] < 0.9 || seen[1] < 0.9 || seen[2] < 0.5)
        found.push([row.textContent.trim().slice(0, 30), how, ...seen]);
    }
  }
  return [most, found];
};
