/* How an explorer begins on a page that is not the book's, and in a notebook: embed.js stands behind. */

/* The specification with other values to start from: of menus first, then of single quantities, as a hand would set them. */
function begunWith(spec, options) {
  const refuse = sentence => { throw new Refused(spec.name + ": " + sentence); };
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

function begin(root, options) {
  const data = root.querySelector("script[type='application/json']");
  data.textContent = JSON.stringify(begunWith(JSON.parse(data.textContent), options));
  BOOK.start(root);
}
