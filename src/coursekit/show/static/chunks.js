/* The picture of a collective, step by step: which chunk is where, and who sends which. stepper.js steps through it. What the data are
   says page_data() of coursekit/topics/collectives/steps.py. Classic script; SVG nodes are made once for a collective and its ranks. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";

  function many(n, of) { return Array.from({ length: n }, (_, k) => of(k)); }
  function bits(parts) { let count = 0; for (; parts; parts &= parts - 1) count++; return count; }

  // --- what follows from the moves ------------------------------------------------------------------------------------------------

  /* Pictures before the first step and after each: of each rank, chunk -> the ranks whose parts are in it, as bits. */
  function follow(data) {
    let picture = data.have.map((chunks, rank) => Object.fromEntries(chunks.map(chunk => [chunk, 1 << rank])));
    const steps = [{ moves: [], picture: picture }];
    data.moves.split(" ").slice(1).forEach(text => {
      const before = picture, moves = (text.match(/..../g) || []).map(move => ({ source: +move[0], target: +move[1],
        chunk: data.hearsay ? 0 : DIGITS.indexOf(move[2]), adds: data.hearsay || move[3] === "+" }));
      picture = before.map(held => Object.assign({}, held));
      moves.forEach(move => {
        picture[move.target][move.chunk] = before[move.source][move.chunk] | (move.adds ? picture[move.target][move.chunk] : 0);
      });
      steps.push({ moves: moves, picture: picture });
    });
    return steps;
  }

  // --- the picture --------------------------------------------------------------------------------------------------------------

  /* The columns of a rank's row in which a chunk stands; in an exchange, what it has for each rank, and what it got from each. */
  function columnsOf(data, rank, chunk) {
    const n = data.have.length, from = Math.floor(chunk / n), to = chunk % n;
    return !data.exchange ? [chunk] : (from === rank ? [to] : []).concat(to === rank ? [n + from] : []);
  }

  const LEFT = 38, LANE = 12;

  /* Beside a single column arrows that pass one another stand in lanes. */
  function laned(moves) {
    const taken = [], lanes = new Map(), size = move => Math.abs(move.target - move.source);
    moves.slice().sort((a, b) => size(a) - size(b)).forEach(move => {
      const low = Math.min(move.source, move.target), high = Math.max(move.source, move.target);
      let lane = 0;
      while ((taken[lane] || []).some(other => low <= other[1] && other[0] <= high && !(low === other[1] || high === other[0]))) lane++;
      (taken[lane] = taken[lane] || []).push([low, high]);
      lanes.set(move, lane);
    });
    lanes.most = Math.max(1, taken.length);
    return lanes;
  }

  /* Nodes for every cell, made once; returns a function that draws a step. Sizes are CSS pixels, so text keeps its size on a phone. */
  function pictureOf(svg, data, steps, width) {
    const n = data.have.length, bars = data.need > 1, columns = data.columns.length * (data.exchange ? 2 : 1), single = columns === 1;
    const cellHeight = bars ? 40 : 32, pitchY = cellHeight + (n > 6 ? 6 : 9), top = data.exchange ? 42 : 24;
    const lanes = single ? Math.max(...steps.map(step => laned(step.moves).most)) : 1;
    const gutter = data.exchange ? Math.max(44, Math.min(110, width / 7)) : 0;
    const pitch = Math.min((width - LEFT - gutter - (data.exchange ? 5 : 0)) / columns, single ? 340 + LANE * lanes : 118);
    const gap = data.exchange ? Math.min(4, pitch / 8) : single ? LANE * lanes + 14 : Math.max(11, Math.min(26, pitch * 0.24));
    const cellWidth = pitch - gap, narrow = cellWidth < 26;
    const x = column => LEFT + column * pitch + (data.exchange && column >= n ? gutter : 0), y = rank => top + rank * pitchY;
    const bar = (cellWidth - 10) / n, barTop = 21, barHeight = 14;
    svg.textContent = "";
    set(svg, { height: top + n * pitchY });

    function head(text, at, up, anchor) {
      draw(svg, "text", { class: "tick", x: at, y: top - up, "text-anchor": anchor || "middle" }).textContent = text;
    }
    head("rank", 0, 9, "start");
    if (data.exchange) { head("has, for rank", x(0), 28, "start"); head("got, from rank", x(n), 28, "start"); }
    many(columns, column => head(data.columns[column % data.columns.length], x(column) + cellWidth / 2, 9));
    const cells = many(n, rank => {
      draw(svg, "text", { class: "strong", x: 13, y: y(rank) + cellHeight / 2 + 5, "text-anchor": "middle" }).textContent = rank;
      return many(columns, column => ({ left: x(column), top: y(rank),
        box: draw(svg, "rect", { x: x(column), y: y(rank), width: cellWidth, height: cellHeight, rx: narrow ? 3 : 4 }) }));
    });
    // One path for all that looks alike, as the browser looks for the style of each path that changes.
    const [old, fresh] = ["", " fresh"].map(kind => draw(svg, "path", { class: "bars" + kind }));
    cells.flat().forEach(cell => {
      cell.text = draw(svg, "text", { x: cell.left + (bars ? 6 : cellWidth / 2), y: cell.top + (bars ? 16 : cellHeight / 2 + 5),
        "text-anchor": bars ? "start" : "middle" });
      cell.digits = draw(svg, "text", { class: "digits", y: cell.top + barTop + 11 });
    });
    const [arrows, tails, heads, signs, operators] = ["arrow", "tail", "head", "sign", "operator"].map(kind => draw(svg, "path", { class: kind }));

    function barsOf(cell, parts) {
      return many(n, rank => parts >> rank & 1 ? "M" + (cell.left + 5.5 + rank * bar).toFixed(1) + " " + (cell.top + barTop) + "h" + (bar - 1).toFixed(1) +
        "v" + barHeight + "h-" + (bar - 1).toFixed(1) + "z" : "").join("");
    }

    function circle(x, y, r) {
      const arc = "a" + r + " " + r + " 0 1 0 ";
      return "M" + (x - r) + " " + y + arc + 2 * r + " 0" + arc + -2 * r + " 0z";
    }

    /* `came`: the parts that this step brought; `sends`: it leaves from this cell. */
    function drawCell(cell, chunk, parts, came, sends) {
      const drawn = [chunk, parts, parts & came, !!sends].join();
      if (drawn === cell.drawn) return;
      cell.drawn = drawn;
      const full = parts && bits(parts) >= data.need, there = bar < 13 ? [] : many(n, rank => rank).filter(rank => parts >> rank & 1);
      set(cell.box, { class: "cell" + (!parts ? " empty" : full ? " full" : "") + (came || sends ? " moved" : "") });
      write(cell.text, !parts ? "" : data.texts ? data.texts[bits(parts)] : data.labels[chunk]);
      set(cell.text, { class: "chunk" + (full ? " on" : "") + (narrow ? " narrow" : "") });
      if (!bars) return;
      cell.old = barsOf(cell, parts & ~came);
      cell.fresh = barsOf(cell, parts & came);
      set(cell.digits, { x: there.map(rank => (cell.left + 5 + (rank + 0.5) * bar).toFixed(1)).join(" ") });
      write(cell.digits, there.join(""));
    }

    /* Paths of a move: its arrow, tail, head, sign and operator. */
    function pathsOf(move, lane) {
      const there = columnsOf(data, move.target, move.chunk), column = there[there.length - 1], edge = x(column) + cellWidth;
      let from = y(move.source) + cellHeight * 0.8, to = y(move.target) + cellHeight * 0.58, path, tail = "";
      const tip = data.exchange ? x(n) - 2 : edge + 1, out = data.exchange ? 1 : -1;
      if (data.exchange) {
        const begin = x(n - 1) + cellWidth + 1, middle = (begin + tip) / 2;
        from = y(move.source) + cellHeight / 2;
        to = y(move.target) + cellHeight / 2;
        path = "M" + begin + " " + from + "C" + middle + " " + from + " " + middle + " " + to + " " + (tip - 6) + " " + to;
      } else {
        const across = edge + (single ? 17 + LANE * lane : gap / 2 + 1.5), r = Math.min(5, across - edge - 2), down = to > from ? 1 : -1;
        path = "M" + edge + " " + from + "H" + (across - r) + "q" + r + " 0 " + r + " " + down * r + "V" + (to - down * r) +
          "q0 " + down * r + " -" + r + " " + down * r + "H" + (edge + 6);
        tail = circle(edge, from, 3);
      }
      const r = narrow ? 6.5 : 7.5, cx = narrow ? x(column) + cellWidth / 2 : edge - 4, cy = y(move.target) + (narrow ? -1 : 3), arm = r - 4;
      return [path, tail, "M" + tip + " " + to + "l" + -7 * out + " -4v8z", circle(cx, cy, r),
        "M" + (cx - arm) + " " + (move.adds ? cy + "h" + 2 * arm + "m-" + arm + " -" + arm + "v" + 2 * arm
          : cy - 1.9 + "h" + 2 * arm + "m-" + 2 * arm + " 3.8h" + 2 * arm)];
    }

    return function (number) {
      const step = steps[number], came = many(n, () => ({})), sends = many(n, () => ({}));
      step.moves.forEach(move => {
        const held = move.adds ? steps[number - 1].picture[move.target][move.chunk] : 0;
        came[move.target][move.chunk] = ~held;
        sends[move.source][move.chunk] = true;
      });
      cells.forEach((row, rank) => {
        const picture = step.picture[rank], there = {};
        for (const chunk in picture) columnsOf(data, rank, +chunk).forEach(column => { there[column] = chunk; });
        row.forEach((cell, column) => {
          const chunk = there[column], mine = data.exchange && column < n; // what it has, not what it got
          drawCell(cell, chunk, picture[chunk] || 0, mine ? 0 : came[rank][chunk] || 0, mine && sends[rank][chunk]);
        });
      });
      if (bars) {
        set(old, { d: cells.flat().map(cell => cell.old).join("") });
        set(fresh, { d: cells.flat().map(cell => cell.fresh).join("") });
      }
      const lanes = laned(step.moves), paths = step.moves.map(move => pathsOf(move, lanes.get(move)));
      [arrows, tails, heads, signs, operators].forEach((node, k) => set(node, { d: paths.map(found => found[k]).join("") }));
    };
  }

  BOOK.steppers.kinds.chunks = { follow: follow, picture: pictureOf };
})();
