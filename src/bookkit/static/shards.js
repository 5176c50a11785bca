/* The picture of a card that bookkit/shards.py or bookkit/pairs.py wrote: who holds which shard. stepper.js steps through it. What the
   data are says page_data() of coursekit/topics/zero/steps.py. Classic script; SVG nodes are made once for a picture and its ranks. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, many = (n, of) => Array.from({ length: n }, (_, k) => of(k));
  let serial = 0; // ids of patterns

  /* Of each step the cells of a rank's row: what is there (0 to 6), and whether the move reads or changes it. */
  function follow(data) {
    return data.moves.split(" ").map(text => Array.from(text, letter => /\d/.test(letter) ? { code: +letter, mark: "" } :
      { code: letter.toLowerCase().charCodeAt(0) - 97, mark: letter > "Z" ? "moved" : "used" }));
  }

  /* The script that the build writes has the words of each step once, not for each number of ranks. */
  function unpack(packed) {
    const data = {};
    for (const name in packed) {
      const { all, sentences, details } = packed[name];
      data[name] = {};
      for (const n in details) data[name][n] = Object.assign({ shards: +n, say: sentences.map((said, k) => [said, details[n][k]]) }, all);
    }
    return data;
  }

  /* Where rank r's shard, all but it, or all of a cell is: rectangles [from, to] as shares of its width. */
  function places(code, rank, n) {
    const own = [rank / n, (rank + 1) / n], others = [[0, own[0]], [own[1], 1]].filter(place => place[1] > place[0]);
    return { solid: [[], [own], [[0, 1]], [], [own], [own], [own]][code], hatched: [[], [], [], [[0, 1]], [[0, 1]], others, []][code] };
  }

  function picture(svg, data, steps, width) {
    const n = data.shards, LEFT = 32, TOP = 44, GAP = 4, ids = "shards-" + ++serial + "-";
    const letters = data.columns.map(([, , own]) => own || Array.from(data.units)), cells = letters.flat().length;
    const high = n > 5 ? 22 : 30, pitchY = high + (n > 5 ? 7 : 10);
    const apart = Math.max(9, Math.min(24, width / 26));
    const cell = Math.min(47, (width - LEFT - 3 - (apart - GAP) * (letters.length - 1) - GAP * (cells - 1)) / cells);
    const before = letters.map((own, column) => letters.slice(0, column).flat().length);
    const x = (column, unit) => LEFT + column * (apart - GAP) + (before[column] + unit) * (cell + GAP);
    const left = letters.flatMap((own, column) => own.map((letter, unit) => x(column, unit)));
    svg.textContent = "";
    set(svg, { height: TOP + n * pitchY });

    const defs = draw(svg, "defs"), links = draw(svg, "path", { class: "link" });
    function text(words, at, y, kind) { write(draw(svg, "text", { class: kind, x: at, y: y, "text-anchor": "middle" }), words); }
    text("rank", 15, TOP - 8, "tick");
    const columns = data.columns.map(([kind, name], column) => {
      const colours = "--fill: var(--memory-" + kind + "); --edge: var(--memory-" + kind + "-line)";
      const hatch = draw(defs, "pattern", { id: ids + kind, width: 5, height: 5, patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)", style: colours });
      draw(hatch, "rect", { width: 2, height: 5, class: "stripe" });
      text(name, (x(column, 0) + x(column, letters[column].length - 1) + cell) / 2, TOP - 27, "key");
      letters[column].forEach((letter, unit) => text(letter, x(column, unit) + cell / 2, TOP - 8, "tick"));
      return { colours: colours, pattern: "url(#" + ids + kind + ")" };
    });
    const rows = many(n, rank => {
      const y = TOP + rank * pitchY;
      text(rank, 15, y + high / 2 + 5, "strong");
      return columns.flatMap((column, number) => letters[number].map((letter, unit) => {
        const place = draw(svg, "g", { transform: "translate(" + x(number, unit) + " " + y + ")", style: column.colours });
        return { box: draw(place, "rect", { width: cell, height: high, rx: 2 }), hatched: draw(place, "path", { class: "hatched",
          fill: column.pattern }), solid: draw(place, "path", { class: "solid" }), mark: draw(place, "rect", { x: -1.5, y: -1.5,
          width: cell + 3, height: high + 3, rx: 3 }) };
      }));
    });

    function boxes(found, top, bottom) {
      return found.map(([from, to]) => "M" + (from * cell).toFixed(1) + " " + top + "H" + (to * cell).toFixed(1) + "V" + bottom + "H" +
        (from * cell).toFixed(1) + "z").join("");
    }

    return function (number) {
      rows.forEach((row, rank) => row.forEach((node, k) => {
        const { code, mark } = steps[number][k], there = places(code, rank, n);
        set(node.box, { class: "place" + (code ? " held" : "") });
        set(node.hatched, { d: boxes(there.hatched, 0, code === 4 ? high / 2 : high) });
        set(node.solid, { d: code === 6 ? "M0 " + (rank / n * high).toFixed(1) + "H" + cell.toFixed(1) + "V" + ((rank + 1) / n * high).toFixed(1) +
          "H0z" : boxes(there.solid, code === 4 ? high / 2 : 0, high) });
        set(node.mark, { class: "mark " + mark });
      }));
      set(links, { d: steps[number].map((cells, k) => cells.mark !== "moved" ? "" : many(n - 1, rank => "M" +
        (left[k] + cell / 2) + " " + (TOP + rank * pitchY + high + 2) + "v" + (pitchY - high - 4)).join("")).join("") });
    };
  }

  BOOK.steppers.kinds.shards = { follow: follow, picture: picture, unpack: unpack };
})();
