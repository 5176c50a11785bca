/* The pictures of explorers, as SVG: nodes are made once and moved. Classic script; explorer.js calls BOOK.pictures[kind](svg, spec).
   Each picture is { draw(values, width), ghost(values or null) }, as high as its place (show/room.py); sizes are CSS pixels, so text keeps its size on a phone. */
(function () {
  "use strict";

  const format = BOOK.format, { set, draw, points, box, write, label, roundUp, colours, hatched } = BOOK.svg;

  // --- pictures -----------------------------------------------------------------------------------------------------------

  function memoryBar(svg, spec) {
    const ROW = 17, TOP = 0, BAR = 40, GAP = 74, y = TOP + spec.parts.length * ROW + 6, under = y + BAR;
    const pattern = hatched(svg);
    const free = draw(svg, "polygon", { class: "free" });
    const parts = spec.parts.map(part => ({
      quantity: part[0], label: part[1], box: draw(svg, "polygon", { class: "part", style: colours(part[2]) })
    }));
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
    const ticks = spec.capacity ? [] : Array.from({ length: 9 }, () => draw(svg, "text", { class: "tick", y: under + 18 }));
    const cardText = draw(svg, "text", { class: "strong", y: under + 19 });
    const gapText = draw(svg, "text", { y: under + 48 });
    let before = null;

    return {
      ghost(values) { before = values; },
      draw(values, width) {
        const used = values[spec.total], room = spec.capacity ? values[spec.capacity] : used, fits = used <= room;
        const longest = Math.max(used, before ? before[spec.total] : 0);
        const most = roundUp(spec.capacity ? 1.02 * Math.max(longest, room) : Math.max(longest, spec.least));
        const x = bytes => bytes / most * (width - GAP) + 1;
        let from = 0;
        parts.forEach((part, k) => {
          const bytes = values[part.quantity], middle = x(from + bytes / 2), shown = bytes > 0 ? "visible" : "hidden";
          box(part.box, x(from), y, x(from + bytes) - x(from), BAR);
          const moved = label(part.text, part.label + " " + format(bytes, "decimal bytes"), middle + 5, width, "start");
          set(part.text, { visibility: shown });
          set(points(part.lead, middle, y, middle, TOP + k * ROW + (moved ? ROW - 1 : 2)), { visibility: shown });
          from += bytes;
        });
        box(over, x(room), y, x(used) - x(room), BAR);
        box(free, x(used), y, x(room) - x(used), BAR);
        const words = format(used, "decimal bytes");
        const outline = before ? "M" + x(0) + " " + (y - 3) + "H" + x(before[spec.total]) + "V" + (under + 3) + "H" + x(0) + "Z" : "";
        set(halo, { d: outline });
        set(ghost, { d: outline });
        if (!spec.capacity) {
          const step = roundUp(most / 6), shown = ticks.map((_, k) => (k + 1) * step).filter(bytes => bytes <= most);
          set(marks, { d: shown.map(bytes => "M" + x(bytes) + " " + under + "v5").join("") });
          ticks.forEach((tick, k) => {
            const there = k < shown.length;
            label(tick, there ? format(shown[k], "decimal bytes") : "", there ? x(shown[k]) : 0, width, "middle");
          });
          label(total, words, x(used) + 8, width, "start");
          return;
        }
        set(card, { d: "M" + x(room) + " " + (y - 5) + "V" + (under + 5) });
        label(cardText, format(room, "decimal bytes") + " card", x(room), width, "middle");
        set(zero, { visibility: x(room) < 70 ? "hidden" : "visible" });
        const past = fits && x(room) - x(used) < words.length * 8 + 12; // too little free space for the text: beyond the line
        label(total, words, x(past ? room : used) + 8, width, "start");
        points(gap, x(used), under + 26, x(used), under + 32, x(room), under + 32, x(room), under + 26);
        set(gapText, { class: fits ? "strong" : "strong warn" });
        label(gapText, format(Math.abs(room - used), "decimal bytes") + (fits ? " free" : " too much"), (x(used) + x(room)) / 2, width, "middle");
      }
    };
  }

  BOOK.pictures.memory = memoryBar;
})();
