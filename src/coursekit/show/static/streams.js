/* The picture of a step as two streams, computing and the link, with what is exposed hatched (Streams of show/pictures.py), and
   the simulator of coursekit/formulas/events.py, from which it is drawn. Loaded on the pages that have one; as pictures.js. */
(function () {
  "use strict";

  const { set, draw, write, label, roundUp } = BOOK.svg;
  const COMPUTE = 0;

  // --- formulas/events.py -------------------------------------------------------------------------------------------------

  /* An entry is [kind, name or count, ...]: ["event", name, stream, seconds, after, when, unless], ["repeat", count, less, entries,
     when, unless] or ["phase", name, entries, when, unless]. */
  function holds(when, unless, values) {
    const is = pair => values[pair[0]] === pair[1];
    return when.every(is) && !unless.some(is);
  }

  function operations(step, values) {
    const found = [], latest = {};
    function add(entry, phase) {
      const conditions = entry.slice(-2);
      if (!holds(conditions[0], conditions[1], values)) return;
      if (entry[0] === "phase") entry[2].forEach(inner => add(inner, entry[1]));
      else if (entry[0] === "repeat") {
        for (let k = values[entry[1]] - entry[2]; k > 0; k--) entry[3].forEach(inner => add(inner, phase));
      } else {
        const waits = entry[4].filter(name => name in latest).map(name => latest[name]);
        latest[entry[1]] = found.length;
        found.push({ name: entry[1], stream: entry[2], phase: phase, seconds: entry[3] ? values[entry[3]] : 0, waits: waits });
      }
    }
    step.forEach(entry => add(entry, ""));
    return found;
  }

  /* How many operations a step has, without making them. */
  function operationCount(step, values) {
    return step.reduce((total, entry) => {
      if (!holds(...entry.slice(-2), values)) return total;
      if (entry[0] === "event") return total + 1;
      if (entry[0] === "phase") return total + operationCount(entry[2], values);
      return total + Math.max(values[entry[1]] - entry[2], 0) * operationCount(entry[3], values);
    }, 0);
  }

  function play(issued) {
    let free = [0, 0], phase = null;
    const ran = [];
    issued.forEach(one => {
      if (one.phase !== phase) {
        phase = one.phase;
        free = free.map(() => Math.max(free[0], free[1]));
      }
      const start = one.waits.reduce((latest, place) => Math.max(latest, ran[place].end), free[one.stream]);
      free[one.stream] = start + one.seconds;
      ran.push({ name: one.name, stream: one.stream, phase: one.phase, start: start, end: free[one.stream] });
    });
    return ran;
  }

  /* [phase, start, end] of each span in which nothing computes. */
  function waiting(ran) {
    const found = [];
    let done = 0, end = 0;
    ran.forEach((one, k) => {
      end = Math.max(end, one.end);
      if (one.stream === COMPUTE && one.start > done) found.push([one.phase, done, one.start]);
      if (one.stream === COMPUTE) done = one.end;
      if (k + 1 === ran.length || ran[k + 1].phase !== one.phase) {
        if (end > done) found.push([one.phase, done, end]);
        done = Math.max(done, end);
      }
    });
    return found;
  }

  // --- the picture ----------------------------------------------------------------------------------------------------------

  let serial = 0; // ids of patterns

  /* The hatch of what is exposed; returns the id of its pattern. */
  function hatched(svg) {
    const id = "streams-exposed-" + ++serial;
    const hatch = draw(draw(svg, "defs"), "pattern", { id: id, width: 6, height: 6, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" });
    draw(hatch, "rect", { width: 2, height: 6, style: "fill: var(--warn)" });
    return id;
  }

  function streams(svg, spec) {
    const LEFT = 62, BAR = 34, ROWS = [22, 64], AXIS = 108, KEY = AXIS + 40, LINE = 18, TICKS = 5;
    const pattern = hatched(svg);
    const kinds = new Map(spec.colours.map(([name, words, colour]) => [name, { words: words,
      path: draw(svg, "path", { class: "bars", style: "fill: var(--" + colour + "); stroke: var(--" + colour + "-line)" }), boxes: "",
      swatch: draw(svg, "rect", { class: "part", width: 11, height: 11, style: "fill: var(--" + colour + "); stroke: var(--" + colour + "-line)" }),
      text: draw(svg, "text", { class: "key" }) }]));
    const over = draw(svg, "path", { class: "exposed", fill: "url(#" + pattern + ")" });
    const swatch = draw(svg, "rect", { class: "exposed", width: 11, height: 11, fill: "url(#" + pattern + ")" });
    const key = draw(svg, "text", { class: "key" }), exposed = draw(svg, "text", { class: "strong", y: 14 });
    const axis = draw(svg, "path", { class: "axis" }), ghost = draw(svg, "path", { class: "ghost" });
    const ticks = Array.from({ length: TICKS + 1 }, () => draw(svg, "text", { class: "tick", y: AXIS + 20 }));
    spec.rows.forEach((words, row) => write(draw(svg, "text", { class: "name", x: 0, y: ROWS[row] + BAR / 2 + 4 }), words));
    let before = null;

    /* Why the step is not drawn, in words: too_many of show/pictures.py. */
    const tooMany = values => {
      const found = operationCount(spec.step, values), count = number => BOOK.format(number, "count");
      return found > spec.most ? count(found) + " pieces: up to " + count(spec.most) + " are drawn" : "";
    };
    const played = values => tooMany(values) ? [] : play(operations(spec.step, values));
    const endOf = ran => ran.reduce((end, one) => Math.max(end, one.end), 0);

    return {
      ghost(values) { before = values && !tooMany(values) ? endOf(played(values)) : null; },
      draw(values, width) {
        const refused = tooMany(values), ran = played(values), end = endOf(ran), most = roundUp(Math.max(end, before || 0) || 1);
        const x = seconds => Math.round(10 * (LEFT + seconds / most * (width - LEFT - 8))) / 10;
        const box = (row, from, to) => "M" + x(from) + " " + ROWS[row] + "H" + x(to) + "v" + BAR + "H" + x(from) + "z";
        ran.forEach(one => { if (one.end > one.start && kinds.has(one.name)) kinds.get(one.name).boxes += box(one.stream, one.start, one.end); });
        const idle = waiting(ran), seconds = idle.reduce((sum, span) => sum + (span[2] - span[1]), 0);
        set(over, { d: idle.map(span => box(COMPUTE, span[1], span[2])).join("") });
        let at = LEFT, row = 0;
        const place = (rect, text, words) => {
          const wide = 22 + 6.4 * words.length;
          if (at + wide > width && at > LEFT) { at = LEFT; row += 1; }
          set(rect, { x: at, y: KEY + row * LINE, visibility: "visible" });
          set(text, { x: at + 16, y: KEY + 10 + row * LINE });
          write(text, words);
          at += wide;
        };
        const hide = (rect, text) => { set(rect, { x: 0, y: 0, visibility: "hidden" }); set(text, { x: 0, y: 0 }); write(text, ""); };
        kinds.forEach(kind => {
          set(kind.path, { d: kind.boxes });
          if (kind.boxes) place(kind.swatch, kind.text, kind.words);
          else hide(kind.swatch, kind.text);
          kind.boxes = "";
        });
        if (refused) hide(swatch, key); else place(swatch, key, spec.idle);
        label(exposed, refused || BOOK.format(seconds, "short duration") + " of " + BOOK.format(end, "short duration") + " " + spec.idle, x(end), width, "end");
        const room = Math.max(2, Math.min(TICKS, Math.floor((width - LEFT) / 60))); // for ticks
        const step = roundUp(most / (room - 1)), shown = ticks.map((_, k) => k * step).filter(tick => tick <= most * 1.0001 && !refused);
        set(axis, { d: refused ? "" : "M" + LEFT + " " + AXIS + "H" + x(most) + shown.map(tick => "M" + x(tick) + " " + AXIS + "v5").join("") });
        ticks.forEach((tick, k) => {
          label(tick, k < shown.length ? BOOK.format(shown[k], "short duration") : "", k < shown.length ? x(shown[k]) : 0, width, "middle");
        });
        set(ghost, { d: before === null || refused ? "" : "M" + x(before) + " " + (ROWS[0] - 4) + "V" + AXIS });
      }
    };
  }

  BOOK.events = { operations, operationCount, play, waiting };
  BOOK.pictures.streams = streams;
})();
