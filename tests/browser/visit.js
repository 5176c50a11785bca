// Run on a page by visit.py: each constant is one script.

// axe needs milliseconds for the contrast of one text, and a page has thousands of texts that look
// alike: same colours, same size, same things behind. Of each look three are marked for axe, so that
// one which axe passes over, being cut off or covered, does not hide the others. `known` counts the
// looks of the pages before: three in the book are enough, but for texts in what is laid over others
// and lets them through, as only the page itself says what is behind them. Of texts in pictures axe
// says nothing at all: tests/engines/test_palette.py does. Returns how many looks this page has,
// whether any text is marked, and the new counts.
const MARK_LOOKS = known => {
  const numbers = new Map(), behind = new Map(), looks = new Map(Object.entries(known)),
    here = new Set();
  const number = node => numbers.get(node) || numbers.set(node, numbers.size + 1).get(node);
  function backdrop(node) {
    if (!node) return "";
    if (!behind.has(node)) {
      const style = getComputedStyle(node), opaque = style.backgroundColor.startsWith("rgb(");
      behind.set(node, backdrop(node.parentElement)
        + (style.backgroundColor === "rgba(0, 0, 0, 0)" ? "" : style.backgroundColor)
        + (style.backgroundImage === "none" ? "" : style.backgroundImage)
        + (style.opacity === "1" ? "" : "opacity" + style.opacity)
        + (style.filter === "none" ? "" : style.filter)
        + (style.mixBlendMode === "normal" ? "" : style.mixBlendMode)
        + (node.matches("[inert], [disabled], [aria-disabled=true]") ? "disabled" : "")
        // what is laid over others has others behind it
        + (opaque || /static|relative/.test(style.position) ? "" : "#" + number(node)));
    }
    return behind.get(node);
  }
  for (const node of document.body.querySelectorAll("*")) {
    node.removeAttribute("data-look");
    const says = node.matches("input, select, textarea")
      || [...node.childNodes].some(part => part.nodeType === 3 && part.data.trim());
    const box = node.getBoundingClientRect();
    if (!says || node.ownerSVGElement || box.width < 2 || box.height < 2
      || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(node);
    const link = node.closest("a[href]"); // is told from the text around it
    const look = [backdrop(node), style.color, style.fontSize, style.fontWeight, style.textShadow,
      link ? getComputedStyle(link.parentElement).color + style.textDecorationLine : ""].join("|");
    const count = (looks.get(look) || 0) + 1;
    looks.set(look, count);
    here.add(look);
    if (count <= 3) node.setAttribute("data-look", "");
  }
  const marked = document.querySelector("[data-look]") !== null;
  const elsewhere = [...looks].filter(([look]) => !look.includes("#"));
  return [here.size, marked, Object.fromEntries(elsewhere)];
};

const OPEN_ALL = () => {
  document.querySelectorAll("details").forEach(part => {
    part.removeAttribute("name"); // of groups that close one another
    part.open = true;
  });
  document.querySelectorAll(".answer").forEach(part => { part.removeAttribute("hidden"); });
};

const ASK_STEPPERS = async () => {
  for (const card of document.querySelectorAll(".stepper.live")) {
    const menu = card.querySelector("select"), title = card.querySelector(".explorer-title"),
      first = title.textContent;
    if (menu) {
      menu.selectedIndex = (menu.selectedIndex + 1) % menu.options.length;
      menu.dispatchEvent(new Event("change"));
    } else card.querySelector("[type=radio]:not(:checked)").click();
    for (let frame = 0; title.textContent === first; frame += 1) {
      if (frame > 3000) throw new Error(`the title stays: ${first}`);
      await new Promise(requestAnimationFrame);
    }
    card.querySelector(".explorer-reset").click();
  }
};

// Whether a target has less than 24 px and does not stand within a line: the rule is about those.
const SMALL_TARGETS = targets => [...document.querySelectorAll(targets)].some(node => {
  const box = node.getBoundingClientRect(),
    inline = up => getComputedStyle(up).display === "inline";
  if (!box.width || (box.width >= 24 && box.height >= 24)
    || !node.checkVisibility({visibilityProperty: true})) return false;
  let line = node;
  while (inline(line)) line = line.parentElement;
  return line === node || line.textContent.trim().length === node.textContent.trim().length;
});

const HIDE_OTHERS = seen => {
  for (const part of document.querySelectorAll("article :is(math, pre, svg, table, p, li)"))
    if (!part.matches(seen) && !part.querySelector(seen)) {
      part.style.visibility = "hidden";
      part.dataset.hidden = "";
    }
};

const SHOW_OTHERS = () => {
  for (const part of document.querySelectorAll("[data-hidden]")) {
    part.style.visibility = "";
    delete part.dataset.hidden;
  }
};

// What stands beyond the window's right edge and is in no box that scrolls. `overflow-x: clip` or
// `hidden` on the way up does not excuse it: then it is not even reached by scrolling.
const BEYOND = () => {
  const wide = document.scrollingElement.scrollWidth, room = document.documentElement.clientWidth,
    found = [];
  if (room !== innerWidth)
    found.push(`the page is laid out ${room} px wide in a window of ${innerWidth}`);
  if (wide > room) found.push(`the page scrolls sideways: ${wide} px in ${room}`);
  const scrolls = node => {
    for (let up = node.parentElement; up && up !== document.body; up = up.parentElement)
    if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return true; return false; };
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    if (box.right <= room + 1 || box.width < 2 || box.height < 2
      || !node.checkVisibility({visibilityProperty: true})) continue;
    // a picture clips what is in it
    if (node.ownerSVGElement || scrolls(node) || found.length > 5) continue;
    found.push(`<${node.tagName.toLowerCase()} class="${node.getAttribute("class") || ""}"> ` +
      `reaches ${Math.round(box.right)} px of ${room}: ` +
      (node.textContent || "").trim().slice(0, 60));
  }
  return found;
};

// Texts of figures and still pictures that run into one another, or out of their figure; texts of
// figures that are smaller than 9 px (plotly makes a text as small as its bar).
const COLLISIONS = () => [
  ...document.querySelectorAll(".plotly-place, .picture svg, .schedule-grids")
].flatMap(figure => {
  const edge = figure.getBoundingClientRect(), found = [];
  const texts = [...figure.querySelectorAll("text")]
    .filter(text => text.textContent.trim() && text.checkVisibility({visibilityProperty: true}));
  for (const text of texts) {
    const {a, b} = text.getScreenCTM(); // some stand upright
    const size = Math.hypot(a, b) * parseFloat(getComputedStyle(text).fontSize);
    if (size < 8.95) found.push(`${text.textContent}: ${size.toFixed(1)} px high`);
  }
  const signs = text => [...text.textContent].map((sign, k) => {
    const of = text.getExtentOfChar(k), seen = text.getScreenCTM(),
      from = new DOMPoint(of.x, of.y).matrixTransform(seen),
      to = new DOMPoint(of.x + of.width, of.y + of.height).matrixTransform(seen);
    return [sign, {left: from.x, right: to.x, top: from.y, bottom: to.y}]; });
  const boxes = texts.flatMap(text => { // signs with places of their own, and lines of a title
    if ((text.getAttribute("x") || "").includes(" ")) return signs(text);
    const rows = [...text.querySelectorAll("tspan.line")];
    return (rows.length ? rows : [text])
      .map(row => [row.textContent, row.getBoundingClientRect()]); });
  boxes.forEach(([words, box], k) => {
    if (box.left < edge.left - 2 || box.right > edge.right + 2)
      found.push(`${words}: ${Math.round(box.left)} to ${Math.round(box.right)} px`);
    boxes.slice(k + 1).forEach(([others, other]) => {
      const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (across > 2 && down > 6) found.push(`${words} runs into ${others}`); });
  });
  return found;
});

// What is wrong with how a card is laid out: texts of a picture that are smaller than 11 px, beyond
// its edges or over one another; what is wider than its control, or than the window; controls in
// which a finger (`touch`) finds less than 44 px, or a pointer less than 24, as a bit has for both.
const CARD_PROBLEMS = (root, touch) => {
  const found = [], seen = node => node.checkVisibility({visibilityProperty: true});
  const box = node => node.getBoundingClientRect();
  const say = (why, ...nodes) => found.push([why,
    ...nodes.map(node => (node.textContent.trim() || node.outerHTML).slice(0, 60))].join(": "));
  for (const svg of root.querySelectorAll("svg")) {
    const edge = box(svg), scale = edge.width / svg.width.baseVal.value;
    const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent && seen(text));
    const boxes = texts.map(box);
    boxes.forEach((one, k) => {
      if (parseFloat(getComputedStyle(texts[k]).fontSize) * scale < 11) say("small", texts[k]);
      if (one.left < edge.left - 1 || one.right > edge.right + 1) say("cut off", texts[k]);
      boxes.slice(k + 1).forEach((other, j) => {
        if (Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
          && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4)
          say("over one another", texts[k], texts[k + 1 + j]);
      });
    });
  }
  for (const part of root.querySelectorAll(".explorer-control *")) {
    const edge = box(part.closest(".explorer-control")), own = box(part);
    if (own.width && (own.right > edge.right + 1 || own.left < edge.left - 1))
      say("wider than its control", part);
  }
  for (const node of root.querySelectorAll("input, select, button, summary, [role=switch]")) {
    const own = box(node), least = touch && !node.matches("[role=switch]") ? 44 : 24;
    if (seen(node) && (own.height < least || own.width < Math.min(least, 40)))
      say(`${own.width} x ${own.height} px`, node);
    if (seen(node) && (own.left < 0 || own.right > innerWidth)) say("beyond the window", node);
  }
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page has ${wide} px in ${innerWidth}`);
  return found;
};

// What there is to read, block by block, except in the explorers and figures, which a script may
// draw.
const BLOCKS = () => [...document.querySelectorAll(
    "article :is(h1, h2, h3, h4, p, li, dt, dd, td, th, pre, figcaption, math)")]
  .filter(node => !node.closest(".explorer, .plotly-figure, noscript, #search-results")
    && node.checkVisibility({visibilityProperty: true}))
  .map(node => node.textContent.replace(/\s+/g, " ").trim());

// Where nothing can be moved (paper, no JavaScript) a card has its table and its sentence and no
// dead control.
const EXPLORERS_AT_REST = () => [...document.querySelectorAll(".explorer")].flatMap(card => {
  const name = card.dataset.explorer, found = [],
    seen = node => node && node.checkVisibility({visibilityProperty: true});
  const table = card.querySelector("table");
  if (!seen(table) || table.rows.length < 3) found.push(`${name}: no table`);
  else for (const cell of table.querySelectorAll("th, td"))
    if (!cell.textContent.trim() && cell.cellIndex) found.push(`${name}: an empty cell`);
  const live = card.matches(".live"), parts = card.querySelectorAll(live
    ? ".explorer-picture" : ".explorer-picture, .explorer-python, .explorer-stale");
  if ([...parts].some(part => seen(part) !== live))
    found.push(`${name}: a picture that is not drawn, or not printed`);
  const sentence = card.querySelector(".explorer-sentence");
  if (!seen(sentence) || !/\d/.test(sentence.textContent)) found.push(`${name}: no sentence`);
  for (const control of card.querySelectorAll("input, select, button"))
    if (seen(control)) {
      found.push(`${name}: <${control.tagName.toLowerCase()}> that does nothing`); break; }
  return found;
});

// The first screen of a page that opens with a picture, and how many screens the whole page has.
const FIRST_SCREEN = () => {
  const box = node => node.getBoundingClientRect(), opening = document.querySelector(".opening");
  if (!opening) return null;
  const [aside, ...parts] = opening.children, title = box(document.querySelector("h1"));
  const live = opening.querySelector(".explorer, .figure"), article = opening.closest("article");
  return {seen: live ? (innerHeight - box(live).top) / box(live).height : 0,
    beside: box(aside).left >= Math.max(title.right, ...parts.filter(part =>
      !part.matches(".wide")).map(part => box(part).right)) && box(aside).top < title.bottom,
    after: live && box(aside).top >= box(live).bottom, tall: box(article).height / innerHeight};
};

// The text of each answer that is hidden, of its box, and of what follows in the section without it
const ANSWERS = () => [...document.querySelectorAll(".box-predict.asks")].map(box => {
  const marked = [...document.querySelectorAll(".box-predict.asks, .answer")];
  const answer = marked[marked.indexOf(box) + 1];
  if (!answer || !answer.matches(".answer")) return null;
  let beside = "", next = box;
  while (next = next.nextElementSibling) {
    if (next.matches("section, .box-predict, .answer")) continue;
    const shown = next.cloneNode(true);
    shown.querySelectorAll(".answer, .explorer").forEach(part => part.remove());
    beside += shown.textContent + " ";
  }
  return [answer.textContent, box.textContent, beside];
}).filter(Boolean);

const PAPER_PROBLEMS = () => {
  const found = [], seen = node => node.checkVisibility({visibilityProperty: true});
  const light = text => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return a ? (r + g + b) / 765 : 1; };
  for (const node of document.querySelectorAll("html, body")) {
    const style = getComputedStyle(node);
    if (light(style.backgroundColor) < 0.95)
      found.push(`${node.tagName} is printed on ${style.backgroundColor}`);
    if (light(style.color) > 0.4) found.push(`${node.tagName} is printed in ${style.color}`);
  }
  for (const node of document.querySelectorAll("main :is(pre, pre *)")) {
    const style = getComputedStyle(node);
    if (light(style.color) < 0.6 && light(style.backgroundColor) > 0.7) continue;
    found.push(`code is printed in ${style.color} on ${style.backgroundColor}: ` +
      node.textContent.trim().slice(0, 40));
    break;
  }
  for (const node of document.querySelectorAll("nav, .header-button, .copy-button"))
    if (seen(node)) {
      found.push(`<${node.tagName.toLowerCase()} class="${node.className}"> is printed`); break; }
  for (const node of document.querySelectorAll("main :is(pre, table, .box)"))
    for (let up = node; up.tagName !== "MAIN"; up = up.parentElement) {
      const style = getComputedStyle(up);
      if (!seen(node) || style.breakInside === "auto" && style.overflowY === "visible") continue;
      found.push(`<${up.tagName.toLowerCase()} class="${up.getAttribute("class") || ""}"> ` +
        "does not break over pages: " + node.textContent.trim().slice(0, 40));
      break;
    }
  for (const node of document.querySelectorAll("main *")) {
    if (node.scrollWidth <= node.clientWidth + 1 || node.clientWidth < 2 || !seen(node)) continue;
    if (!/auto|scroll|hidden|clip/.test(getComputedStyle(node).overflowX)) continue;
    found.push(`<${node.tagName.toLowerCase()} class="${node.getAttribute("class") || ""}"> ` +
      `is cut off on paper: ${node.scrollWidth} px in ` +
      node.clientWidth + ": " + node.textContent.trim().slice(0, 60));
  }
  return found.slice(0, 6);
};

const MOVED = () => {
  const now = new Map(placesNow().map(([node, , ...place]) => [node, place]));
  return [placesBefore.length, placesBefore
    .filter(([node]) => now.has(node)) // a script may put another in its place, which moves others
    .filter(([node, , ...place]) => place.some((size, k) => Math.abs(size - now.get(node)[k]) > 1)
      || (node.matches(".explorer-drawing") && node.clientHeight < 20)) // as high as its room
    .map(([node, words, ...place]) => words + ": " + place + " -> " + now.get(node))];
};

const NO_SCRIPT_PROBLEMS = () => {
  const found = [], seen = node => node.checkVisibility({visibilityProperty: true});
  for (const node of document.querySelectorAll("button, input, select, textarea"))
    if (seen(node) && !node.closest("form"))
      found.push("does nothing without JavaScript: " + node.outerHTML.slice(0, 100));
  for (const math of document.querySelectorAll("math")) {
    const box = math.getBoundingClientRect();
    if (seen(math) && (box.width < 2 || box.height < 2))
      found.push("a formula is not drawn: " + math.textContent.slice(0, 60));
  }
  const tex = /\\[(\[]|\$\$|\\(frac|text|cdot|begin)\b/;
  for (const node of document.querySelectorAll("article :is(p, li, td, div)"))
    if (!node.closest("pre, code") && [...node.childNodes]
      .some(part => part.nodeType === 3 && tex.test(part.data)))
      found.push("a formula is left as TeX: " + node.textContent.trim().slice(0, 60));
  return found.slice(0, 8);
};
