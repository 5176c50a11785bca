/* Nodes of SVG that are made once and moved: BOOK.svg, for the scripts that draw and for those of cards.
   Classic script. */
(function () {
  "use strict";

  window.BOOK = window.BOOK || {};
  const SVG = "http://www.w3.org/2000/svg";

  /* Writes what is new: even the same value, written again, costs the browser a look at the element's style. */
  function set(node, attributes) {
    const written = node.written || (node.written = {});
    for (const name in attributes) {
      if (written[name] !== attributes[name]) node.setAttribute(name, written[name] = attributes[name]);
    }
    return node;
  }

  /* A line through points, and a box, by `points`: when those change, the browser looks at no rule of style, as it does for x, width
     and d. What has no width is not drawn. */
  function points(node, ...numbers) { return set(node, { points: numbers.join(" ") }); }

  function box(node, x, y, wide, high) {
    return wide > 0 ? points(node, x, y, x + wide, y, x + wide, y + high, x, y + high) : points(node);
  }

  function draw(parent, tag, attributes) {
    return parent.appendChild(set(document.createElementNS(SVG, tag), attributes || {}));
  }

  /* The text that is there is changed: a new one in its place would have to be laid out from nothing. */
  function write(node, text) {
    if (node.wrote === text) return;
    node.wrote = text;
    if (node.firstChild && node.firstChild === node.lastChild && node.firstChild.nodeType === 3) node.firstChild.data = text;
    else node.textContent = text;
  }

  function clamp(value, least, most) { return Math.max(least, Math.min(most, value)); }

  /* Text at x, moved so that it stays between 0 and width; true if it had to move. Its width is estimated: measuring would
     force a layout. */
  function label(node, text, x, width, anchor) {
    write(node, text);
    const wide = text.length * 7, left = { start: 0, middle: wide / 2, end: wide }[anchor], right = width - wide + left;
    const at = clamp(x, Math.min(left, right), Math.max(left, right));
    set(node, { x: at, "text-anchor": anchor });
    return at < x;
  }

  /* The smallest round number that is not below value. */
  function roundUp(value) {
    const scale = Math.pow(10, Math.floor(Math.log10(value)));
    return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12].find(step => step * scale >= value) * scale;
  }

  let serial = 0; // ids of patterns

  /* Fill and outline of a colour of the memory palette. */
  function colours(name) { return "fill: var(--memory-" + name + "); stroke: var(--memory-" + name + "-line)"; }

  /* The hatch over what is too much; returns the id of its pattern. */
  function hatched(svg) {
    const id = "explorer-over-" + ++serial;
    const hatch = draw(draw(svg, "defs"), "pattern", { id: id, width: 7, height: 7, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" });
    draw(hatch, "rect", { width: 3, height: 7, class: "hatch" });
    return id;
  }

  BOOK.svg = { set, draw, points, box, write, clamp, label, roundUp, colours, hatched };
  BOOK.pictures = {}; // kind -> function that makes a picture in an SVG node from its specification
})();
