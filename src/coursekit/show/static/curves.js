/* The picture of quantities along a swept one, both axes logarithmic or linear from zero (Curves of show/pictures.py). Loaded
   on the pages that have one. A redraw asks the formulas at each stop, writes one path for each line and measures no text. */
(function () {
  "use strict";

  const { set, draw, points, write, label, roundUp } = BOOK.svg;
  const LETTER = 7, DIGIT = 6.5, ROW = 16, PLOT = 154, PAD = 30; // pixels; a letter is as wide as label() takes it for
  const MARKS = { circle: Array.from({ length: 16 }, (_, k) => [4.5 * Math.cos(k * Math.PI / 8), 4.5 * Math.sin(k * Math.PI / 8)]),
    square: [[-4, -4], [4, -4], [4, 4], [-4, 4]], diamond: [[0, -5.5], [5, 0], [0, 5.5], [-5, 0]], "triangle-up": [[0, -5.5], [5, 3.5], [-5, 3.5]] };

  /* A circle around the pen, as a path. */
  function ring(radius) {
    const arc = "a" + radius + " " + radius + " 0 1 0 ";
    return "m" + -radius + " 0" + arc + 2 * radius + " 0" + arc + -2 * radius + " 0";
  }

  function tenth(size) { return Math.round(10 * size) / 10; }

  function at(x, y) { return tenth(x) + " " + tenth(y); }

  function there(line, values) {
    return line.when.every(pair => values[pair[0]] === pair[1]) && !line.unless.some(pair => values[pair[0]] === pair[1]);
  }

  function fill(text, values) {
    return text.replace(/\{(\w+):([^}]+)\}/g, (_, name, style) => BOOK.format(values[name], style));
  }

  /* Where a value lies on an axis, 0 at its least and 1 at its most. */
  function share(value, range, log) {
    return log ? Math.log(value / range[0]) / Math.log(range[1] / range[0]) : (value - range[0]) / (range[1] - range[0]);
  }

  /* Powers of ten, or 1, 2 and 5 of them where there are few; from zero on, round steps. */
  function ticksOf(range, log) {
    const made = [];
    if (!log) {
      const step = roundUp(range[1] / 6);
      for (let k = 0; k * step <= range[1] * 1.0001; k++) made.push(+(k * step).toPrecision(9));
      return made;
    }
    const first = Math.ceil(Math.log10(range[0]) - 1e-9), last = Math.floor(Math.log10(range[1]) + 1e-9);
    if (last - first >= 2) {
      const step = Math.ceil((last - first) / 7);
      for (let power = first; power <= last; power += step) made.push(+("1e" + power));
      return made;
    }
    for (let power = first - 1; power <= last; power++) {
      made.push(...[1, 2, 5].map(digit => +(digit + "e" + power)).filter(tick => tick >= range[0] * 0.999 && tick <= range[1] * 1.001));
    }
    return made;
  }

  function tickText(axis, value) {
    const text = value ? BOOK.format(value, axis.style) : "0";
    return (axis.unit && text.endsWith(axis.unit) ? text.slice(0, -axis.unit.length) : text).trim();
  }

  BOOK.pictures.curves = function (svg, spec) {
    const measured = spec.lines.flatMap(line => line.measured || []), compared = measured.length > 0;
    const TOP = ROW * (spec.marks.length + 1 + compared) + 6, under = TOP + PLOT, stops = spec.stops, logX = spec.x.log, logY = spec.y.log;
    const wholeX = [stops[0], stops[stops.length - 1], ...measured.map(pair => pair[0])];
    const rangeX = [logX ? Math.min(...wholeX) : 0, Math.max(...wholeX)], inX = value => value >= rangeX[0] && value <= rangeX[1];
    const model = BOOK.models[spec.model];
    // One path for all lines that look alike: a redraw writes two long paths instead of eighteen short ones.
    const grid = draw(svg, "path", { class: "grid" }), floor = draw(svg, "path", { class: "axis" });
    const names = Array.from({ length: 10 }, () => draw(svg, "text", { class: "tick", "text-anchor": "end" }));
    const ticks = Array.from({ length: 8 }, () => draw(svg, "text", { class: "tick", y: under + 18 }));
    const halo = draw(svg, "path", { class: "ghost halo" }), ghost = draw(svg, "path", { class: "ghost" });
    const guides = spec.marks.map((mark, k) => ({ quantity: mark[0], words: mark[1],
      line: draw(svg, "polyline", { class: "lead", "stroke-dasharray": "1 3" }), text: draw(svg, "text", { class: "name", y: TOP - 6 - ROW * k }) }));
    const drop = draw(svg, "polyline", { class: "lead" });
    const lines = spec.lines.map(line => ({
      quantity: line.quantity, given: line.given, words: line.label, when: line.when, unless: line.unless, mark: MARKS[line.mark],
      path: draw(svg, "path", { class: "curve", fill: "none", stroke: line.colour, "stroke-width": 2.5, "stroke-dasharray": line.dash,
        "stroke-linejoin": "round" }),
      at: draw(svg, "polygon", { fill: line.colour }), lead: draw(svg, "polyline", { fill: "none", stroke: line.colour }),
      text: draw(svg, "text", { class: "name" }), measured: line.measured || [],
      marks: draw(svg, "path", { class: "measured", style: "fill: " + line.colour }) }));
    const note = spec.note && draw(svg, "text", { class: "name" });
    const point = draw(svg, "path", { class: "marker" }), words = draw(svg, "text", { class: "strong of-point" });
    write(draw(svg, "text", { class: "tick", y: 12 }), spec.y.words);
    const told = compared && draw(svg, "text", { class: "tick", y: 12 + ROW });
    if (compared) point.classList.add("predicted");
    const nameX = draw(svg, "text", { class: "tick", y: under + 36 });
    let before = null, last = null;

    // Lines that are computed from the same values, once: those without a given value are a group.
    const groups = Array.from(new Set(lines.map(line => JSON.stringify(line.given || {}))), text => ({ given: JSON.parse(text),
      lines: lines.filter(line => JSON.stringify(line.given || {}) === text) }));
    const others = groups.filter(group => Object.keys(group.given).length);

    /* [place, Map of the lines' values there], without places at which the formulas refuse. */
    function sample(values, places, of) {
      const found = [];
      of.forEach(group => { // the model's inputs alone: a card computes ten times as many quantities
        group.values = {};
        spec.inputs.forEach(name => { group.values[name] = values[name]; });
        Object.assign(group.values, group.given);
      });
      places.forEach(place => {
        const there = new Map();
        try {
          of.forEach(group => {
            group.values[spec.sweep] = place;
            const made = model(group.values);
            group.lines.forEach(line => there.set(line, made[line.quantity]));
          });
          found.push([place, there]);
        } catch (refused) {
          if (!(refused instanceof BOOK.InvalidQuantity)) throw refused;
        }
      });
      return found;
    }

    let sampled = [], key = ""; // what the lines are drawn from stays while the reader moves nothing that moves them

    function swept(values, places) {
      const now = JSON.stringify([spec.inputs.map(name => values[name]), places]);
      if (now !== key) { key = now; sampled = sample(values, places, groups); }
      return sampled;
    }

    function look(values) {
      if (last && last.values === values) return last;
      const bends = spec.corners ? guides.map(guide => values[guide.quantity]) : [];
      const corners = bends.filter(place => place > stops[0] && place < stops[stops.length - 1]);
      const places = corners.length ? stops.concat(corners).sort((one, other) => one - other) : stops;
      return { values: values, swept: swept(values, places), shown: lines.filter(line => there(line, values)) };
    }

    function rangeOf(looks) {
      let least = Infinity, most = 0;
      looks.forEach(look => look.swept.forEach(one => look.shown.forEach(line => {
        const value = one[1].get(line);
        if (value > 0) { least = Math.min(least, value); most = Math.max(most, value); }
      })));
      measured.forEach(([, value]) => { least = Math.min(least, value); most = Math.max(most, value); });
      if (!most) least = most = looks[0].values[spec.point]; // the formulas refuse every place: the point is still to be seen
      if (!(most > 0)) return logY ? [1, 10] : [0, 1];
      if (!logY) return [0, roundUp(most * (1 + (spec.above ? PAD / PLOT : 0.03)))];
      const pad = Math.max(Math.log10(most / least), 1) * PAD / PLOT; // room for the point's words; ends at half powers of ten
      const low = Math.log10(least) - (spec.above ? pad / 5 : pad), high = Math.log10(most) + (spec.above ? pad : pad / 5);
      return [Math.pow(10, Math.floor(2 * low) / 2), Math.pow(10, Math.ceil(2 * high) / 2)];
    }

    function outline(look, line, x, y) {
      let path = "", pen = "M";
      look.swept.forEach(one => {
        const value = one[1].get(line);
        if (logY && !(value > 0)) { pen = "M"; return; }
        path += pen + at(x(one[0]), y(value));
        pen = "L";
      });
      return path;
    }

    /* Whether a line crosses a box. */
    function crossed(look, x, y, left, right, top, bottom) {
      return look.shown.some(line => look.swept.some(([place, values], k) => {
        const [before, earlier] = look.swept[Math.max(0, k - 1)], from = x(before), to = x(place), start = y(earlier.get(line)), end = y(values.get(line));
        if (to < left || from > right || to === from) return false;
        const at = here => start + (end - start) * (Math.max(from, Math.min(to, here)) - from) / (to - from);
        return Math.min(at(left), at(right)) < bottom && Math.max(at(left), at(right)) > top;
      }));
    }

    /* The words at the ends of lines, pushed apart where lines end close together. */
    function labelEnds(look, x, y, right, width) {
      const ends = look.shown.map(line => {
        const value = look.swept.length ? look.swept[look.swept.length - 1][1].get(line) : 0;
        const end = value > 0 || !logY ? y(value) : under;
        return { line: line, from: end, at: end };
      }).sort((one, other) => one.at - other.at);
      ends.forEach((end, k) => { end.at = Math.max(end.at, k ? ends[k - 1].at + ROW : TOP + 4); });
      for (let k = ends.length - 1, most = under; k >= 0; k--, most -= ROW) ends[k].at = Math.min(ends[k].at, most);
      ends.forEach(end => {
        points(end.line.lead, right + 1, tenth(end.from), right + 10, tenth(end.at));
        set(end.line.text, { y: tenth(end.at + 4) });
        label(end.line.text, fill(end.line.words, look.values), right + 13, width, "start");
      });
    }

    return {
      ghost(values) { before = values && look(values); },
      draw(values, width, measuredAt) {
        const now = last = look(values), rangeY = rangeOf(before ? [now, before] : [now]);
        const ofAWhole = spec.y.style === "percent" && rangeY[1] <= 1.2; // above the whole there is room for words alone
        const rows = ticksOf(rangeY, logY).filter(value => !ofAWhole || value <= 1).slice(0, names.length), sizes = rows.map(value => tickText(spec.y, value));
        const longest = texts => Math.max(0, ...texts.map(text => text.length));
        const left = Math.round(longest(sizes) * DIGIT) + 10;
        const right = width - longest(now.shown.map(line => fill(line.words, values))) * LETTER - 15, wide = right - left;
        const x = value => left + wide * share(value, rangeX, logX), y = value => under - PLOT * share(value, rangeY, logY);

        if (told) write(told, "lines: predicted, marks: measured" + measuredAt);
        set(grid, { d: rows.map(value => "M" + at(left, y(value)) + "H" + right).join("") });
        names.forEach((name, k) => { // what is not needed is empty
          set(name, { x: left - 6, y: k < rows.length ? tenth(y(rows[k]) + 4) : 0 });
          write(name, k < rows.length ? sizes[k] : "");
        });
        const all = spec.x.ticks.length ? spec.x.ticks : ticksOf(rangeX, logX), texts = all.map(value => tickText(spec.x, value));
        const every = Math.ceil((longest(texts) * LETTER + 6) / (wide / Math.max(1, all.length - 1)));
        let marks = "";
        ticks.forEach((tick, k) => {
          const value = all[k * every];
          if (value !== undefined) marks += "M" + at(x(value), under) + "v5";
          label(tick, texts[k * every] || "", value === undefined ? 0 : x(value), width, "middle");
        });
        set(floor, { d: "M" + left + " " + under + ".5H" + right + marks });
        label(nameX, spec.x.words, left + wide / 2, width, "middle");

        guides.forEach(guide => {
          const place = values[guide.quantity], seen = inX(place);
          if (seen) points(guide.line, tenth(x(place)), TOP - 3, tenth(x(place)), under); else points(guide.line);
          const said = seen ? fill(guide.words, values) : "";
          label(guide.text, said, seen ? Math.max(left + said.length * LETTER / 2, x(place)) : 0, width, "middle"); // beside the ticks
        });

        const here = values[spec.sweep], beyond = here > rangeX[1] ? 1 : here < rangeX[0] ? -1 : 0;
        const px = beyond ? (beyond > 0 ? right : left) : x(here), height = values[spec.point];
        const py = logY && !(height > 0) ? under : Math.max(TOP, Math.min(under, y(height)));
        const own = others.length ? sample(values, [here], others) : []; // what lines with given values have where the reader is
        const drawn = lines.map(line => now.shown.includes(line) ? outline(now, line, x, y) : "");
        lines.forEach((line, k) => {
          const value = line.given ? (own.length ? own[0][1].get(line) : 0) : values[line.quantity], marked = drawn[k] && !beyond && (value > 0 || !logY);
          set(line.path, { d: drawn[k] });
          points(line.at, ...(marked ? line.mark.map(by => at(px + by[0], y(value) + by[1])) : []));
          const mark = ([place, size]) => "M" + line.mark.map(by => at(x(place) + by[0], y(size) + by[1])).join("L") + "z";
          set(line.marks, { d: drawn[k] ? line.measured.map(mark).join("") : "" });
          if (drawn[k]) return;
          points(line.lead);
          set(line.text, { x: 0, y: 0 });
          write(line.text, "");
        });
        labelEnds(now, x, y, right, width);
        set(point, { d: "M" + at(px, py) + (beyond ? "m" + 8 * beyond + " 0l" + -14 * beyond + " -7v14z" : ring(6.5)) });
        const text = fill(spec.words, values), half = text.length * LETTER / 2;
        const above = py - 13, lower = py + 23, places = [[px + 9 + half, above], [px + 9 + half, lower], [px - 9 - half, lower], [px - 9 - half, above]];
        places.unshift(spec.above ? [px + 10 - half, above] : places[1]); // lines rise to the right: there is room above left, below right
        const inside = places.map(place => [Math.max(left + half + 2, Math.min(right - half, place[0])), place[1]]);
        const free = (middle, top, bottom) => !crossed(now, x, y, middle - half, middle + half, top, bottom);
        const farther = [1, 2, 3, 4, 5, 6, 7, 8, 9].flatMap(k => inside.slice(1).map(([middle, level]) => [middle, level + (level < py ? -k : k) * ROW / 2]));
        const [middle, level] = inside.find(([middle, level]) => level < under
          && free(middle, ...(level < py ? [level - 13, py - 6] : [py + 6, level + 4]))) // no line between the words and the point
          || farther.find(([middle, level]) => level > TOP + 13 && level < under && free(middle, level - 15, level + 6)) || inside[0];
        points(drop, tenth(px), tenth(Math.min(py, level)), tenth(px), under); // up to words that stand farther away
        set(words, { y: tenth(level) });
        label(words, text, middle, width, "middle");
        if (note) { // not where the point's words are
          const found = sample(values, [spec.note[0]], groups), begin = x(spec.note[0]) + 8;
          const row = found.length ? y(found[0][1].get(lines[0])) + 14 : 0, said = found.length ? fill(spec.note[1], values) : "";
          const over = Math.abs(row - level) < ROW && begin < middle + half + 4 && begin + said.length * LETTER > middle - half - 4;
          set(note, { y: tenth(row) });
          label(note, over ? "" : said, begin, width, "start");
        }

        let old = "";
        if (before) {
          const paths = before.shown.map(line => outline(before, line, x, y));
          old = paths.filter(path => !drawn.includes(path)).join(""); // what moved
          const was = before.values[spec.sweep], height_was = before.values[spec.point];
          if (inX(was) && (!logY || height_was > 0)) old += "M" + at(x(was), y(height_was)) + ring(6.5);
        }
        set(halo, { d: old });
        set(ghost, { d: old });
      }
    };
  };
})();
