/* The end of an explorer's script for a page that is not the book's, and for a notebook (show/embed.py). In front of it stand NAME, CARD
   and SHEET, the scripts that draw, and the explorer's functions. Each rendering has a shadow root: ids, names and styles are its own. */

const ARROWS = /^(Arrow|Page|Home|End)/;

/* What the page around it asks for: `options`, or a widget's trait of that name. */
function optionsOf({ model, options }) {
  return Object.assign({}, model && model.get && model.get("options"), options);
}

class Refused extends Error {}

function refuse(sentence) { throw new Refused(NAME + ": " + sentence); }

/* The specification with other values to start from: of menus first, then of single quantities, as a hand would set them. */
function begunWith(spec, options) {
  const menus = Object.fromEntries(spec.menus.map(menu => [menu.kind, menu]));
  const known = [...Object.keys(menus), ...spec.inputs, "theme"];
  const values = Object.assign({}, spec.values), chosen = Object.assign({}, spec.chosen);
  const preset = kind => Object.fromEntries(menus[kind].quantities.map((name, k) => [name, menus[kind].presets[chosen[kind]][k]]));
  Object.keys(options).forEach(name => { if (!known.includes(name)) refuse(name + " is no option; there are " + known.join(", ") + "."); });
  if (options.theme && !["light", "dark"].includes(options.theme)) refuse("theme = " + options.theme + ": it must be light or dark.");
  const set = (changes, presets) => Object.assign(values, BOOK.follow(spec.links, Object.assign({}, values, changes), Object.keys(changes), presets));
  Object.keys(menus).filter(kind => kind in options).forEach(kind => {
    const names = Object.keys(menus[kind].presets);
    if (!names.includes(options[kind])) refuse(kind + " = " + options[kind] + ": there are " + names.join(", ") + ".");
    chosen[kind] = options[kind];
    set(preset(kind), preset(kind));
  });
  const own = Object.fromEntries(Object.entries(options).filter(([name]) => spec.inputs.includes(name) && !(name in menus)).map(([name, value]) => {
    const control = spec.controls.find(control => control.quantity === name), style = control && control.style || "exact";
    return [name, typeof value === "string" && typeof spec.values[name] === "number" ? BOOK.parse(value, style, "") : value];
  }));
  set(own, Object.assign({}, ...Object.keys(menus).map(preset)));
  try { BOOK.models[spec.name](values); } catch (error) {
    if (error instanceof BOOK.InvalidQuantity) refuse(error.message);
    throw error;
  }
  return Object.assign(spec, { values, chosen });
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

/* Appends the explorer to an element. anywidget's interface: the result takes it away again. */
function render(asked) {
  const host = document.createElement("div"), inside = host.attachShadow({ mode: "open" });
  if (!sheet) { sheet = new CSSStyleSheet(); sheet.replaceSync(SHEET); }
  inside.adoptedStyleSheets = [sheet];
  inside.innerHTML = CARD;
  const root = inside.querySelector(".explorer"), data = root.querySelector("script[type='application/json']"), options = optionsOf(asked);
  host.setAttribute("data-lm-suppress-shortcuts", "true"); // of JupyterLab, whose letters and arrows are commands
  host.addEventListener("keydown", event => { if (event.key.length === 1 || ARROWS.test(event.key)) event.stopPropagation(); }); // nor do slides turn
  asked.el.append(host);
  let forget = () => {};
  if (options.theme) host.dataset.theme = options.theme; else forget = followPage(host);
  try {
    data.textContent = JSON.stringify(begunWith(JSON.parse(data.textContent), options));
    BOOK.start(root);
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
