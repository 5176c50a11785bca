/* The end of a card's script for a page that is not the book's, and for a notebook (show/embed.py). In front of it stand CARD and SHEET,
   the scripts that draw, and `begin(root, options)`, which makes the card live. Each rendering has a shadow root: ids, names and styles
   are its own. */

const ARROWS = /^(Arrow|Page|Home|End)/;

/* What the page around it asks for: `options`, or a widget's trait of that name. */
function optionsOf({ model, options }) {
  return Object.assign({}, model && model.get && model.get("options"), options);
}

/* Whether the page is dark where the explorer stands: light letters mean a dark page. */
function isDark(place) {
  const shades = (place.isConnected ? getComputedStyle(place).color : "").match(/^rgba?\((\d+), (\d+), (\d+)/);
  if (!shades) return matchMedia("(prefers-color-scheme: dark)").matches;
  return 0.299 * shades[1] + 0.587 * shades[2] + 0.114 * shades[3] > 127;
}

/* Dark or light as the page is, and as it becomes; returns what ends it. */
function followPage(host) {
  const look = () => { host.dataset.theme = isDark(host.parentElement || host) ? "dark" : "light"; };
  const scheme = matchMedia("(prefers-color-scheme: dark)"), size = new ResizeObserver(look), page = new MutationObserver(look);
  look();
  size.observe(host); // comes into the page, perhaps only now
  [document.documentElement, document.body].filter(Boolean).forEach(node => page.observe(node, { attributes: true }));
  scheme.addEventListener("change", look);
  host.addEventListener("pointerenter", look); // a style sheet that came late
  return () => { size.disconnect(); page.disconnect(); scheme.removeEventListener("change", look); };
}

let sheet; // one for all renderings

class Refused extends Error {}

/* Appends the card to an element. anywidget's interface: the result takes it away again. */
function render(asked) {
  const host = document.createElement("div"), inside = host.attachShadow({ mode: "open" });
  if (!sheet) { sheet = new CSSStyleSheet(); sheet.replaceSync(SHEET); }
  inside.adoptedStyleSheets = [sheet];
  inside.innerHTML = CARD;
  const root = inside.querySelector(".explorer"), options = optionsOf(asked);
  host.setAttribute("data-lm-suppress-shortcuts", "true"); // of JupyterLab, whose letters and arrows are commands
  host.addEventListener("keydown", event => { if (event.key.length === 1 || ARROWS.test(event.key)) event.stopPropagation(); }); // nor do slides turn
  asked.el.append(host);
  let forget = () => {};
  if (options.theme) host.dataset.theme = options.theme; else forget = followPage(host);
  try {
    begin(root, options);
  } catch (error) {
    forget();
    if (error instanceof Refused) {
      inside.innerHTML = "<p role=alert></p>";
      inside.firstChild.textContent = error.message;
    } else host.remove();
    throw error;
  }
  return () => { forget(); host.remove(); };
}
