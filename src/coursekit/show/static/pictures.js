/* The pictures of explorers, as SVG: nodes are made once and moved. Classic script; explorer.js calls BOOK.pictures[kind](svg, spec).
   Each picture is { draw(values, width), ghost(values or null) }, as high as its place (show/pictures.py); sizes are CSS pixels, so text keeps its size on a phone. */
(function () {
  "use strict";

  const format = BOOK.format, { set, draw, points, box, write, label, roundUp, colours, hatched } = BOOK.svg;

  const FAR = 30; // a card of so many times the bytes is named at the edge: the bar would vanish
  const TICK = 48; // pixels for the number at a mark

  // --- pictures -----------------------------------------------------------------------------------------------------------

  function memoryBar(svg, spec) {
    const measured = spec.measured, found = part => measured && part.quantity in measured;
    const ROW = 17, TOP = measured ? 18 : 0, BAR = 40, GAP = 74, INSIDE = 12, y = TOP + spec.parts.length * ROW + 6, under = y + BAR;
    const pattern = hatched(svg);
    const free = draw(svg, "polygon", { class: "free" });
    const parts = spec.parts.map(([quantity, label, colour]) => ({ quantity, label, box: draw(svg, "polygon", { class: "part", style: colours(colour) }) }));
    parts.filter(found).forEach(part => {
      part.box.classList.add("predicted");
      part.inside = draw(svg, "polygon", { class: "part measured", style: part.box.getAttribute("style") });
    });
    const over = draw(svg, "polygon", { class: "over", fill: "url(#" + pattern + ")" });
    const halo = draw(svg, "path", { class: "ghost halo" }), ghost = draw(svg, "path", { class: "ghost" });
    const card = draw(svg, "path", { class: "capacity" });
    const gap = draw(svg, "polyline", { class: "axis" });
    parts.forEach((part, k) => {
      part.lead = draw(svg, "polyline", { class: "lead" });
      part.text = draw(svg, "text", { class: "label", y: TOP + k * ROW + 13 });
    });
    const total = draw(svg, "text", { class: "strong", y: y + BAR / 2 + 5 });
    const zero = draw(svg, "text", { class: "tick", x: 1, y: under + 18 });
    write(zero, "0");
    const marks = draw(svg, "path", { class: "axis" });
    const ticks = Array.from({ length: 9 }, () => draw(svg, "text", { class: "tick", y: under + 18 }));
    const cardText = draw(svg, "text", { class: "strong", y: under + 19 });
    const gapText = draw(svg, "text", { y: under + 48 }), key = measured && draw(svg, "text", { class: "tick", y: 11 });
    let before = null;

    return {
      ghost(values) { before = values; },
      draw(values, width, measuredAt) {
        const used = values[spec.total], room = spec.capacity ? values[spec.capacity] : used, fits = used <= room;
        const sizes = parts.map(part => found(part) ? measured[part.quantity] : values[part.quantity]);
        const end = Math.max(used, sizes.reduce((sum, size) => sum + size, 0)), longest = Math.max(end, before ? before[spec.total] : 0);
        const near = spec.capacity && room <= FAR * Math.max(longest, 1);
        const most = roundUp(near ? 1.02 * Math.max(longest, room) : Math.max(longest, spec.least, 1));
        const x = bytes => bytes / most * (width - GAP) + 1;
        if (key) write(key, "outline: predicted, fill: measured" + measuredAt);
        let from = 0, place = 0;
        parts.forEach((part, k) => {
          const bytes = values[part.quantity], middle = x(from + bytes / 2), shown = bytes > 0 || found(part) && sizes[k] > 0 ? "visible" : "hidden";
          box(part.box, x(from), y, x(from + bytes) - x(from), BAR);
          const beside = !found(part) ? "" : ", measured " + (sizes[k] === bytes ? "the same" : format(sizes[k], "decimal bytes"));
          if (beside) box(part.inside, x(place), y + INSIDE, x(place + sizes[k]) - x(place), BAR - 2 * INSIDE);
          place += sizes[k];
          const moved = label(part.text, part.label + " " + format(bytes, "decimal bytes") + beside, middle + 5, width, "start");
          set(part.text, { visibility: shown });
          set(points(part.lead, middle, y, middle, TOP + k * ROW + (moved ? ROW - 1 : 2)), { visibility: shown });
          from += bytes;
        });
        box(over, x(room), y, near ? x(used) - x(room) : 0, BAR);
        box(free, x(used), y, near ? x(room) - x(used) : 0, BAR);
        const words = format(used, "decimal bytes");
        const outline = before ? "M" + x(0) + " " + (y - 3) + "H" + x(before[spec.total]) + "V" + (under + 3) + "H" + x(0) + "Z" : "";
        set(halo, { d: outline });
        set(ghost, { d: outline });
        const step = roundUp(most / Math.min(6, (width - GAP) / TICK)), shown = near ? [] : ticks.map((_, k) => (k + 1) * step).filter(bytes => bytes <= most);
        set(marks, { d: shown.map(bytes => "M" + x(bytes) + " " + under + "v5").join("") });
        ticks.forEach((tick, k) => {
          const there = k < shown.length;
          label(tick, there ? format(shown[k], "decimal bytes") : "", there ? x(shown[k]) : 0, width, "middle");
        });
        if (!near) {
          label(total, words, x(end) + 8, width, "start");
          if (!spec.capacity) return;
          set(card, { d: "" });
          points(gap);
          label(cardText, "", 0, width, "start");
          set(gapText, { class: "name" });
          label(gapText, format(room, "decimal bytes") + " card: far to the right, " + format(room - used, "decimal bytes") + " free →", width, width, "end");
          return;
        }
        set(card, { d: "M" + x(room) + " " + (y - 5) + "V" + (under + 5) });
        label(cardText, format(room, "decimal bytes") + " card", x(room), width, "middle");
        set(zero, { visibility: x(room) < 70 ? "hidden" : "visible" });
        const past = fits && x(room) - x(end) < words.length * 8 + 12; // too little free space for the text: beyond the line
        label(total, words, x(past ? room : end) + 8, width, "start");
        points(gap, x(used), under + 26, x(used), under + 32, x(room), under + 32, x(room), under + 26);
        set(gapText, { class: fits ? "strong" : "strong warn" });
        label(gapText, format(Math.abs(room - used), "decimal bytes") + (fits ? " free" : " too much"), (x(used) + x(room)) / 2, width, "middle");
      }
    };
  }

  BOOK.pictures.memory = memoryBar;
})();
