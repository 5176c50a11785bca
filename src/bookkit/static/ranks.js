/* Beside the bar of a rank of any layout: buttons with the nearest layouts that fit, and all ranks as cells, which light up with
   whom the chosen one shares what. explorer.js calls BOOK.parts[name](card, hands) and then, after every change, what that returned.
   Classic script. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, REST_MS = 150; // how long the hand must rest before layouts are tried

  /* "ZeRO 3, microbatch 1" */
  BOOK.inWords = function (changes, facts) {
    return Object.entries(changes).map(([name, value]) => {
      const text = name === "recompute_policy" ? facts.again[value] : typeof value === "number" ? BOOK.format(value, "exact") : value;
      return facts.words[name].replace("{}", text);
    }).join(", ");
  };

  /* A button for each layout; a click hands it on. */
  BOOK.nearestButtons = function (box, found, facts, take) {
    box.replaceChildren(document.createTextNode(found.length ? "Nearest that fits: " : "Nothing near fits."), ...found.map(one => {
      const button = document.createElement("button"), bytes = document.createElement("small");
      button.type = "button";
      button.textContent = BOOK.inWords(one.changes, facts) + " ";
      bytes.textContent = BOOK.format(one.bytes, "decimal bytes");
      button.append(bytes);
      button.addEventListener("click", () => take(one));
      return button;
    }));
  };

  function nearest(root, hands) {
    const box = root.querySelector(".explorer-nearest"), facts = hands.spec.layouts;
    const layouts = BOOK.layouts(hands.spec.name, hands.presets, facts);
    let resting, known; // the layout of which the buttons are

    return shown => {
      clearTimeout(resting);
      if (!shown || shown.fits) { box.replaceChildren(); known = ""; return; }
      resting = setTimeout(() => {
        const layout = layouts.shown(hands.values(), hands.chosen()), now = JSON.stringify(layout);
        if (now === known) return; // a button that has the focus keeps it
        known = now;
        BOOK.inSlices(layouts.nearest(layout), () => now === known, found => BOOK.nearestButtons(box, found, facts, one => {
          const menus = Object.fromEntries(["gpu", "kernels", "recipe"].filter(kind => kind in one.changes).map(kind => [kind, one.changes[kind]]));
          hands.set(layouts.knobs(one.layout, one.fullest), menus);
        }), error => { throw error; });
      }, REST_MS);
    };
  }

  // --- who shares what

  const TALL = 116, TOP = 18, NAMES = 17, LEAST = 13, MOST = 20, LINES = 5, GAP = 7, ROW_GAP = 5, SKIP = 16;
  const SHARED = ["adds gradients with", "adds gradients with, and divides optimizer states among,",
    "divides gradients and optimizer states among", "divides parameters, gradients and optimizer states among"];

  /* Which of `count` are shown where `room` of them have room: the first ones, the chosen one, the last. */
  function seen(count, room, chosen) {
    if (count <= room) return Array.from({ length: count }, (_, k) => k);
    const found = Array.from({ length: Math.max(1, room - 1) }, (_, k) => k);
    if (chosen >= found.length && chosen < count - 1) found[found.length - 1] = chosen;
    return room > 1 ? found.concat(count - 1) : [chosen];
  }

  function ranks(root, hands) {
    const place = root.querySelector(".ranks-drawing"), words = root.querySelector(".ranks-words");
    const svg = draw(place, "svg", { role: "slider", tabindex: 0, "aria-label": "Rank on show", "aria-valuemin": 0, height: TALL });
    const frames = draw(svg, "path", { class: "node" }), cells = [], texts = [];
    const own = { copy: 0, part: 0 };
    let sizes = null, hover = null, width = 0;

    function idOf(at) { return at.part + sizes.t * (at.copy + sizes.d * at.stage); }
    function nodeOf(id) { return Math.floor(id / sizes.node); }
    function at(id) { return { part: id % sizes.t, copy: Math.floor(id / sizes.t) % sizes.d, stage: Math.floor(id / (sizes.t * sizes.d)) }; }

    /* t, d or p: the group in which both are, beside the same rank. */
    function shared(one, other) {
      const same = name => one[name] === other[name];
      if (same("copy") && same("stage")) return same("part") ? "own" : "t";
      return same("part") && same("stage") ? "d" : same("part") && same("copy") ? "p" : "";
    }

    function group(from, step, count) {
      const all = Array.from({ length: Math.min(count, 4) }, (_, k) => from + k * step), last = from + (count - 1) * step;
      const text = step === 1 && count > 2 ? from + " to " + last : count > 4 ? all.slice(0, 3).join(", ") + " ... " + last : all.join(", ");
      const nodes = step > sizes.node ? count : nodeOf(last) - nodeOf(from) + 1;
      return "ranks " + text + (nodes > 1 ? ", on " + BOOK.format(nodes, "exact") + " nodes" : ", inside a node");
    }

    function said(one) {
      const { t, d, p } = sizes, id = idOf(one);
      const parts = ["Rank " + BOOK.format(id, "exact") + " on node " + nodeOf(id) + (p > 1 ? ", stage " + one.stage : "") + (d > 1 ? ", copy " + one.copy : "") + (t > 1 ? ", part " + one.part : "") + "."];
      if (t > 1) parts.push("t: divides each layer among " + group(id - one.part, 1, t) + ".");
      if (d > 1) parts.push("d: " + SHARED[sizes.zero] + " " + group(id - t * one.copy, t, d) + ".");
      if (p > 1) parts.push("p: the other stages of its copy are on " + group(id - t * d * one.stage, t * d, p) + ".");
      return parts.join(" ");
    }

    function cell(k) {
      while (cells.length <= k) {
        const box = draw(svg, "rect", { class: "rank", rx: 2 });
        cells.push({ box: box, mark: draw(svg, "text", { class: "rank-mark", "text-anchor": "middle" }) });
      }
      return cells[k];
    }

    function text(k, words, x, y, anchor) {
      while (texts.length <= k) texts.push(draw(svg, "text", { class: "tick" }));
      write(texts[k], words);
      set(texts[k], { x: x, y: y, "text-anchor": anchor || "start" });
    }

    /* The ranks of a stage side by side, copy after copy, on as many lines as there is room for. */
    function redraw() {
      if (!sizes || !width) return;
      const { t, d, p } = sizes, chosen = Object.assign({ stage: sizes.stage }, own), lit = hover === null ? chosen : at(hover);
      const left = p > 1 ? 52 : 3, room = width - left - 3, gap = t < sizes.node ? 2 : GAP, between = gap + (GAP - gap) * t / sizes.node;
      const perLine = Math.max(1, Math.floor((room - SKIP) / (t * LEAST + between))), most = Math.max(1, Math.floor(LINES / p));
      const copies = seen(d, perLine * most, own.copy), stages = seen(p, LINES, sizes.stage);
      const lines = Math.ceil(copies.length / perLine), each = Math.ceil(copies.length / lines), named = stages.length * lines <= 3;
      const tall = named ? TALL / (stages.length * lines) - NAMES : (TALL - TOP) / (stages.length * lines);
      const side = Math.max(8, Math.min(MOST, tall - ROW_GAP, (room - (copies.length < d ? SKIP : 0) - each * between) / (each * t)));
      let used = 0, labels = 0, outline = "", y = 0;
      stages.forEach((stage, row) => {
        for (let line = 0; line < lines; line++) {
          const names = named || (!row && !line);
          y += names ? (named ? NAMES : TOP - 2) : 0;
          if (p > 1 && !line) text(labels++, "stage " + stage, 0, y + side / 2 + 4);
          let x = left, node = null, from = 0;
          const close = to => { if (node !== null) outline += "M" + (from - 2) + " " + (y - 2) + "H" + (to + 1) + "V" + (y + side + 1) + "H" + (from - 2) + "Z"; };
          copies.slice(line * each, (line + 1) * each).forEach((copy, k, all) => {
            const first = idOf({ copy, part: 0, stage });
            if (k) {
              const skips = copy > all[k - 1] + 1;
              if (skips || nodeOf(first) !== node) { close(x); node = null; x += GAP; } else x += gap;
              if (skips) { if (names) text(labels++, "...", x + SKIP / 2 - GAP, y + side / 2, "middle"); x += SKIP - GAP; }
            }
            const wide = t * side;
            if (names && d > 1 && (wide > 20 || copy % 8 === 0 || copy === d - 1)) text(labels++, (wide > 44 ? "copy " : "") + copy, x + wide / 2, y - 6, "middle");
            for (let part = 0; part < t; part++, x += side) {
              const id = first + part, { box, mark } = cell(used++), kind = shared({ copy, part, stage }, lit);
              if (nodeOf(id) !== node) { close(x); node = nodeOf(id); from = x; }
              set(box, { x: x + 0.5, y: y + 0.5, width: side - 1.5, height: side - 1.5, "data-rank": id, visibility: "visible",
                class: "rank" + (kind && " of-" + kind) + (id === idOf(chosen) ? " chosen" : "") });
              write(mark, kind === "own" ? "\u25cf" : kind);
              set(mark, { x: x + side / 2, y: y + side / 2 + 4 });
            }
          });
          close(x);
          y += side + ROW_GAP;
        }
      });
      cells.slice(used).forEach(({ box, mark }) => { set(box, { visibility: "hidden" }); write(mark, ""); });
      texts.slice(labels).forEach(one => write(one, ""));
      set(frames, { d: outline });
      write(words, said(lit) + (stages.length < p || copies.length < d ? " (Not all ranks are drawn.)" : ""));
      set(svg, { width: width, "aria-valuemax": d * t * p - 1, "aria-valuenow": idOf(chosen), "aria-valuetext": said(chosen) });
    }

    function choose(id) {
      const one = at(id);
      own.copy = one.copy;
      own.part = one.part;
      hover = null;
      if (one.stage !== sizes.stage) hands.move("pipeline_rank", one.stage); else redraw();
    }

    svg.addEventListener("pointermove", event => {
      if (event.pointerType !== "mouse") return;
      const id = event.target.getAttribute("data-rank"), now = id === null ? null : +id;
      if (now !== hover) { hover = now; redraw(); }
    });
    svg.addEventListener("pointerleave", () => { if (hover !== null) { hover = null; redraw(); } });
    svg.addEventListener("click", event => {
      const id = event.target.getAttribute("data-rank");
      if (id !== null && sizes) choose(+id);
    });
    svg.addEventListener("keydown", event => {
      if (!sizes) return;
      const id = idOf(Object.assign({ stage: sizes.stage }, own)), row = sizes.t * sizes.d;
      const next = { ArrowRight: id + 1, ArrowLeft: id - 1, ArrowDown: id + row, ArrowUp: id - row, Home: 0, End: row * sizes.p - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      if (next >= 0 && next < row * sizes.p) choose(next);
    });
    new ResizeObserver(() => { width = place.clientWidth; redraw(); }).observe(place);

    return shown => {
      if (!shown) return;
      sizes = { t: shown.tensor_parallel, d: shown.data_parallel, p: shown.pipeline_parallel, node: shown.ranks_per_node,
        stage: shown.pipeline_rank, zero: shown.zero_stage };
      own.copy = Math.min(own.copy, sizes.d - 1);
      own.part = Math.min(own.part, sizes.t - 1);
      redraw();
    };
  }

  BOOK.parts = { nearest, ranks };
})();
