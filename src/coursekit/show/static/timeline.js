/* Pictures of explorers with time from left to right: the timeline of a training step, and a duration on an axis. As pictures.js. */
(function () {
  "use strict";

  const format = BOOK.format, { set, draw, write, clamp, label, roundUp, colours, hatched } = BOOK.svg;

  /* Columns of bytes from zero, time from left to right. What is beyond the card is hatched, the highest column is named. */
  function timeline(svg, spec) {
    const TOP = 30, PLOT = 128, LEFT = 50, under = TOP + PLOT, NAMES = under + 16, KEY = under + 74, LETTER = 5.9, CLOSE = 62, FAR = 3;
    const pattern = hatched(svg);
    // One path for all that looks alike: a redraw writes a few long ones, and the browser looks at the style of as few.
    const gridLines = draw(svg, "path", { class: "grid" });
    const grid = [0, 1, 2, 3, 4, 5, 6].map(count => ({ count: count, text: draw(svg, "text", { class: "tick", x: LEFT - 6, "text-anchor": "end" }) }));
    const kinds = spec.kinds.map(kind => ({ path: draw(svg, "path", { class: "part", style: colours(kind[1]) }), boxes: "" }));
    const over = draw(svg, "path", { class: "over", fill: "url(#" + pattern + ")" }), leads = draw(svg, "path", { class: "lead" });
    const columns = spec.columns.map(column => ({ name: column.name, phase: column.phase, total: column.total, when: column.when,
      parts: column.parts.map(part => ({ quantity: part[0], kind: kinds[part[1]] })), text: draw(svg, "text", { class: "name" }) }));
    const halo = draw(svg, "path", { class: "ghost halo" }), ghost = draw(svg, "path", { class: "ghost" });
    const card = draw(svg, "path", { class: "capacity" }), cardText = draw(svg, "text", { class: "strong" });
    const mark = draw(svg, "path", { class: "peak" }), peak = draw(svg, "text", { class: "strong" });
    const phases = Array.from(new Set(spec.columns.map(column => column.phase)), name => ({ name: name,
      line: draw(svg, "path", { class: "axis" }), text: draw(svg, "text", { class: "tick", y: under + 56 }) }));
    const key = new Map();
    spec.columns.slice().sort((one, other) => other.parts.length - one.parts.length).forEach(column => column.parts.forEach(part => {
      const [words, colour] = spec.kinds[part[1]];
      if (!key.has(colour)) key.set(colour, { words: words, swatch: draw(svg, "rect", { class: "part", width: 11, height: 11, style: colours(colour) }),
        text: draw(svg, "text", { class: "key" }) });
    }));
    let before = null;

    return {
      ghost(values) { before = values; },
      draw(values, width) {
        const there = values => columns.filter(column => column.when.every(pair => values[pair[0]] === pair[1]));
        const shown = there(values), room = values[spec.capacity];
        const highest = shown.reduce((high, column) => values[column.total] > values[high.total] ? column : high);
        const old = before ? there(before) : [];
        const tall = Math.max(values[highest.total], ...old.map(column => before[column.total]));
        const near = room <= FAR * tall, most = roundUp(1.02 * Math.max(tall, near ? room : 0));
        const y = bytes => under - bytes / most * PLOT, pitch = (width - LEFT) / shown.length, wide = 0.76 * pitch;
        const x = column => LEFT + pitch * (shown.indexOf(column) + 0.12), middle = column => x(column) + wide / 2;

        const step = roundUp(most / 5), ticks = grid.filter(tick => tick.count * step <= most);
        set(gridLines, { d: ticks.map(tick => "M" + LEFT + " " + y(tick.count * step) + "H" + width).join("") });
        grid.forEach(tick => {
          const bytes = tick.count * step, seen = bytes <= most;
          set(tick.text, { y: seen ? y(bytes) + 4 : 0 });
          write(tick.text, !seen ? "" : bytes ? format(bytes, "decimal bytes") : "0");
        });
        const box = (column, from, to) => "M" + x(column) + " " + y(to) + "h" + wide + "v" + (y(from) - y(to)) + "H" + x(column) + "z";
        let hatch = "", down = "";
        const ends = { 0: width, 16: width }; // a name ends before the next of its row begins
        for (let k = shown.length - 1; k >= 0; k--) {
          const column = shown[k];
          let from = 0;
          column.parts.forEach(part => {
            const bytes = values[part.quantity];
            if (bytes > 0) part.kind.boxes += box(column, from, from + bytes);
            from += bytes;
          });
          if (from > room) hatch += box(column, room, from);
          const low = pitch < CLOSE && k % 2 ? 16 : 0; // close names stand in two rows
          if (low) down += "M" + middle(column) + " " + (under + 3) + "v" + (low - 1);
          set(column.text, { class: column === highest ? "name strong" : "name", y: NAMES + low });
          const half = 3.5 * column.name.length, at = Math.min(middle(column), ends[low] - half);
          label(column.text, column.name, at, width, "middle");
          ends[low] = at - half - 2;
        }
        columns.forEach(column => { if (!shown.includes(column)) label(column.text, "", 0, width, "middle"); });
        kinds.forEach(kind => { set(kind.path, { d: kind.boxes }); kind.boxes = ""; });
        set(over, { d: hatch });
        set(leads, { d: down });
        phases.forEach(phase => {
          const of = shown.filter(column => column.phase === phase.name), last = of[of.length - 1], many = of.length > 1;
          set(phase.line, { d: many ? "M" + x(of[0]) + " " + (under + 41) + "H" + (x(last) + wide) : "" });
          set(phase.text, { visibility: many ? "visible" : "hidden" });
          label(phase.text, phase.name, (x(of[0]) + x(last) + wide) / 2, width, "middle");
        });

        const right = shown.indexOf(highest) >= shown.length / 2; // the card is named where the peak is not
        const named = format(room, "decimal bytes") + (near ? " card" : " card: far above"), from = right ? LEFT + 4 : width - 7 * named.length;
        const below = shown.filter(column => x(column) < from + 7 * named.length && x(column) + wide > from); // the name lies on none of them
        const high = Math.max(room, ...below.map(column => values[column.total])), lead = high > room ? "V" + y(high) : ""; // beside the columns
        set(card, { d: !near ? "" : right ? "M" + width + " " + y(room) + "H" + LEFT + lead : "M" + LEFT + " " + y(room) + "H" + (width - 1) + lead });
        set(cardText, { y: near ? y(high) - 6 : 13 });
        label(cardText, named, right ? LEFT + 4 : width, width, right ? "start" : "end");
        set(mark, { d: "M" + middle(highest) + " " + (y(values[highest.total]) - 1) + "l-5 -7h10z" });
        const above = y(values[highest.total]) - 13, across = near && Math.abs(above - 4 - y(room)) < 11; // the card's line
        set(peak, { y: across ? y(room) - 6 : above, class: values[highest.total] > room ? "strong warn" : "strong" });
        const words = "peak " + format(values[highest.total], "decimal bytes");
        label(peak, words, Math.max(middle(highest), LEFT + 3.5 * words.length), width, "middle"); // right of the axis' numbers

        let left = 0, row = 0;
        key.forEach(entry => {
          const length = 18 + entry.words.length * LETTER;
          if (left + length > width && left) { left = 0; row++; }
          set(entry.swatch, { x: left + 1, y: KEY + 18 * row });
          set(entry.text, { x: left + 17, y: KEY + 18 * row + 10 });
          write(entry.text, entry.words);
          left += length + 10;
        });
        const outline = old.filter(column => shown.includes(column)).map(column => "M" + x(column) + " " + under + "V" +
          y(before[column.total]) + "h" + wide + "V" + under).join("");
        set(halo, { d: outline });
        set(ghost, { d: outline });
      }
    };
  }

  function timeAxis(svg, spec) {
    const y = 34, EDGE = 10;
    const line = draw(svg, "path", { class: "axis" });
    const ticks = spec.ticks.map(tick => ({ seconds: tick[1], mark: draw(svg, "path", { class: "axis" }),
      text: draw(svg, "text", { class: "tick", y: y + 21 }), name: tick[0] }));
    const ghost = draw(svg, "circle", { class: "ghost", r: 7, cy: y });
    const marker = draw(svg, "circle", { class: "marker", r: 7, cy: y });
    const arrow = draw(svg, "path", { class: "marker" });
    const text = draw(svg, "text", { class: "strong", y: y - 16 });
    const measured = spec.measured && spec.measured[spec.quantity];
    const disc = measured && draw(svg, "path", { class: "marker measured" }), key = measured && draw(svg, "text", { class: "strong", y: y + 40 });
    if (measured) marker.classList.add("predicted");
    let before = null;

    return {
      ghost(values) { before = values; },
      draw(values, width, measuredAt) {
        const x = seconds => EDGE + (width - 2 * EDGE) * clamp(
          Math.log(seconds / spec.least) / Math.log(spec.most / spec.least), 0, 1);
        const seconds = values[spec.quantity], beyond = seconds > spec.most ? 1 : seconds < spec.least ? -1 : 0;
        set(line, { d: "M" + x(spec.least) + " " + y + ".5H" + x(spec.most) });
        let taken = Infinity; // where the name to the right begins: one that would touch it is not written
        ticks.slice().reverse().forEach(tick => {
          const at = x(tick.seconds), half = 3.2 * tick.name.length, right = Math.min(at + half, width), free = right + 2 <= taken;
          set(tick.mark, { d: "M" + at + " " + (y - 4) + "v9" });
          label(tick.text, free ? tick.name : "", at, width, "middle");
          if (free) taken = right - 2 * half;
        });
        set(marker, { cx: x(seconds), visibility: beyond ? "hidden" : "visible" });
        const beside = (seconds, side) => "M" + (x(seconds) + 8 * side) + " " + y + "l" + -14 * side + " -7v14z";
        set(arrow, { visibility: beyond ? "visible" : "hidden", d: beside(seconds, beyond) });
        label(text, format(seconds, "duration") + (measured ? " predicted" : ""), x(seconds), width, "middle");
        if (measured) {
          const side = measured > spec.most ? 1 : measured < spec.least ? -1 : 0;
          set(disc, { d: side ? beside(measured, side) : "M" + (x(measured) - 4) + " " + y + "a4 4 0 1 0 8 0a4 4 0 1 0 -8 0" });
          label(key, format(measured, "duration") + " measured" + measuredAt, x(measured), width, "middle");
        }
        set(ghost, { cx: before ? x(before[spec.quantity]) : 0, visibility: before ? "visible" : "hidden" });
      }
    };
  }

  Object.assign(BOOK.pictures, { timeline, time: timeAxis });
})();
