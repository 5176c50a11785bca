/* The picture of a pipeline's schedule (SchedulePicture of topics/pipelines/schedule_picture.py), and the simulator of
   shardlab/pipelines/simulation.py, which plays the lists that the card carries. Loaded on the pages that have one; as pictures.js. */
(function () {
  "use strict";

  const { set, draw, write, label, roundUp } = BOOK.svg;
  const F = 0, B = 1, I = 2, W = 3;

  // --- the lists: packed by bookkit/explorer_data.py ------------------------------------------------------------------------

  /* "A4Ab3b1": four times A, three times Ab, b. A space is between ranks. */
  function unpack(text) { return text.replace(/(\D+)(\d+)/g, (_, unit, count) => unit.repeat(+count)); }

  /* Actions [stage, kind, microbatch] of each rank. A letter is a kind and one of the rank's stages. */
  function planOf(spec, values) {
    return spec.lists[spec.sizes.map(name => values[name]).join()].split(" ").map((text, rank, all) => {
      const next = {};
      return unpack(text).split("").map(letter => {
        const microbatch = next[letter] || 0, forward = "ABCDEFGH".indexOf(letter), backward = "abcdefgh".indexOf(letter);
        const kind = letter === "i" ? I : letter === "w" ? W : forward >= 0 ? F : B;
        next[letter] = microbatch + 1;
        return [Math.max(forward, backward, 0) * all.length + rank, kind, microbatch];
      });
    });
  }

  // --- simulation.py --------------------------------------------------------------------------------------------------------

  /* Stages of a rank. */
  function chunksOf(plan) { return new Set(plan[0].map(action => action[0])).size; }

  /* Seconds of F, I and W of each stage. */
  function costsOf(spec, plan, values) {
    const each = chunksOf(plan), stages = plan.length * each, last = values[spec.seconds[4]];
    const ofStages = seconds => Array.from({ length: stages }, (_, stage) => seconds / each + (stage === stages - 1 ? (last - 1) * seconds : 0));
    return { parts: [0, 1, 2].map(k => ofStages(values[spec.seconds[k]])), transfer: values[spec.seconds[3]] };
  }

  /* Of each rank [action, begin, end]. A schedule that cannot go on is none of the card's. */
  function simulate(plan, costs) {
    const ranks = plan.length, stages = ranks * chunksOf(plan), split = plan[0].some(action => action[1] === I);
    const key = (stage, kind, microbatch) => (microbatch * stages + stage) * 4 + kind;
    const made = new Map(), came = new Map(), free = new Map(); // at the own rank, at the neighbour, links
    const cost = action => {
      const part = k => costs.parts[k][action[0]];
      return action[1] === F ? part(0) : action[1] === B ? part(1) + part(2) : action[1] === I ? part(1) : part(2);
    };
    /* When the action may begin, or undefined as long as nobody knows. */
    const ready = (action, rank) => {
      const [stage, kind, microbatch] = action, at = (other, otherKind) =>
        (other % ranks === rank ? made : came).get(key(other, otherKind, microbatch));
      if (kind === F) return stage ? at(stage - 1, F) : 0;
      if (kind === W) return at(stage, I);
      const own = at(stage, F), answer = stage < stages - 1 ? at(stage + 1, split ? I : B) : 0;
      return own === undefined || answer === undefined ? undefined : Math.max(own, answer);
    };
    const spans = plan.map(() => []);
    for (let going = true; going;) {
      going = false;
      spans.forEach((own, rank) => {
        while (own.length < plan[rank].length) {
          const action = plan[rank][own.length], wanted = ready(action, rank);
          if (wanted === undefined) break;
          const begin = Math.max(own.length ? own[own.length - 1][2] : 0, wanted), end = begin + cost(action);
          own.push([action, begin, end]);
          made.set(key(...action), end);
          const target = action[0] + (action[1] === F ? 1 : -1), other = target % ranks;
          if (action[1] !== W && target >= 0 && target < stages && other !== rank) {
            const leaves = Math.max(end, free.get(rank * ranks + other) || 0);
            free.set(rank * ranks + other, leaves + costs.transfer);
            came.set(key(...action), leaves + costs.transfer);
          }
          going = true;
        }
      });
    }
    return spans;
  }

  /* Of each rank, the most microbatches of its stages whose activations it holds. */
  function inFlight(plan) {
    return plan.map(actions => {
      let held = 0, most = 0;
      actions.forEach(action => {
        if (action[1] === F) held += 1;
        most = Math.max(most, held);
        if (action[1] === B || action[1] === W) held -= 1;
      });
      return most;
    });
  }

  const total = numbers => numbers.reduce((sum, one) => sum + one, 0);
  const busyOf = own => total(own.map(span => span[2] - span[1]));
  const secondsOf = spans => Math.max(...spans.map(own => own[own.length - 1][2])) - Math.min(...spans.map(own => own[0][1]));

  /* SchedulePicture.derived: what the sentences may say. */
  function derived(spec, values) {
    const plan = planOf(spec, values), spans = simulate(plan, costsOf(spec, plan, values)), held = inFlight(plan);
    const ranks = plan.length, seconds = secondsOf(spans), busy = spans.map(busyOf);
    const cleaned = idle => idle > 1e-9 * seconds ? idle : 0; // of what rounding leaves where no rank is idle
    const idle = cleaned(total(busy.map(one => seconds - one)));
    const found = {
      simulated_seconds: seconds, simulated_work_seconds: total(busy) / ranks, simulated_idle_seconds: idle / ranks,
      simulated_share_of_total: idle ? idle / (ranks * seconds) : 0, simulated_share_of_ideal: idle ? idle / total(busy) : 0,
      simulated_own_idle_seconds: cleaned(total(spans.map((own, rank) => own[own.length - 1][2] - own[0][1] - busy[rank]))) / ranks,
      first_in_flight: held[0], last_in_flight: held[ranks - 1], first_held_models: held[0] / (ranks * chunksOf(plan)),
      as_by_formula: Math.abs(seconds - (values[spec.ideal] + values[spec.idle])) <= 1e-9 * seconds ? 1 : 0
    };
    Object.keys(found).forEach(name => { found[name] = +found[name].toPrecision(12); }); // as the Python does
    return found;
  }

  // --- the picture ----------------------------------------------------------------------------------------------------------

  const FILLS = [ // kind and whether it is before the rank's first backward -> colour, opacity, words
    ["forward", 1, "forward before the first backward"], ["forward", 0.36, "other forwards"], ["backward", 0.36, "backward"],
    ["backward", 0.36, "backward of the input"], ["weight-gradient", 0.62, "of the weights"]];
  const ROWS = 152, TOP = 24, LEFT = 16, RIGHT = 74, LINE = 18, TICKS = 5, DIGIT = 6.6;

  function schedule(svg, spec) {
    const idle = draw(svg, "path", { class: "idle" });
    const paths = FILLS.map(fill => draw(svg, "path", { class: "bars", style: "fill: var(--timeline-" + fill[0] + "); fill-opacity: " + fill[1] +
      "; stroke: var(--" + (fill[1] === 1 ? "page" : "timeline-" + fill[0] + "-line") + ")" }));
    const bars = draw(svg, "path", { class: "peak" }); // on what is not the rank's first stage
    const memory = draw(svg, "path", { class: "part", style: "fill: var(--memory-activations); stroke: var(--memory-activations-line)" });
    const keys = FILLS.map(fill => ({ swatch: draw(svg, "rect", { class: "part", width: 11, height: 11, style: "fill: var(--timeline-" + fill[0] +
      "); fill-opacity: " + fill[1] + "; stroke: var(--timeline-" + fill[0] + "-line)" }), text: draw(svg, "text", { class: "key" }), words: fill[2] }));
    const rows = Array.from({ length: 8 }, () => ({ name: draw(svg, "text", { class: "name", "text-anchor": "end" }),
      held: draw(svg, "text", { class: "name", "text-anchor": "end" }),
      inside: [draw(svg, "text", { class: "digit first" }), draw(svg, "text", { class: "digit" })] }));
    const head = draw(svg, "text", { class: "strong", x: LEFT, y: 14 }), column = draw(svg, "text", { class: "tick", y: 14 });
    const axis = draw(svg, "path", { class: "axis" }), ghost = draw(svg, "path", { class: "ghost" });
    const ticks = Array.from({ length: TICKS + 1 }, () => draw(svg, "text", { class: "tick" }));
    let before = null;

    const played = values => { const plan = planOf(spec, values); return simulate(plan, costsOf(spec, plan, values)); };

    return {
      ghost(values) { before = values ? secondsOf(played(values)) : null; },
      draw(values, width) {
        const plan = planOf(spec, values), spans = simulate(plan, costsOf(spec, plan, values)), ranks = plan.length, held = inFlight(plan);
        const end = Math.max(...spans.map(own => own[own.length - 1][2]));
        const tall = Math.min(40, ROWS / ranks), bar = tall - 5, under = TOP + ranks * tall;
        const most = Math.max(end, before || 0) || 1, x = seconds => LEFT + seconds / most * (width - LEFT - RIGHT), one = number => +number.toFixed(1);
        const boxes = FILLS.map(() => ""), room = width - RIGHT + 14, wide = Math.max(...held);
        let later = "", lines = "", kept = "";
        rows.forEach((row, rank) => {
          const own = spans[rank] || [], y = TOP + rank * tall, places = [["", []], ["", []]];
          let first = true;
          own.forEach(([action, begin, stop]) => {
            first = first && action[1] === F;
            const from = x(begin), across = x(stop) - from, box = "M" + one(from) + " " + one(y) + "h" + one(across) + "v" + one(bar) + "h" + one(-across) + "z";
            if (across > 0) boxes[action[1] === F ? (first ? 0 : 1) : action[1] + 1] += box;
            if (action[0] >= ranks && across > 3) later += "M" + one(from + 1) + " " + one(y + 1) + "h" + one(across - 2) + "v2h" + one(2 - across) + "z";
            const text = String(action[2]), half = text.length * DIGIT / 2;
            if (across < 2 * half + 3) return;
            places[first ? 0 : 1][0] += text;
            for (let k = 0; k < text.length; k++) places[first ? 0 : 1][1].push(one((from + x(stop)) / 2 - half + k * DIGIT));
          });
          row.inside.forEach((node, k) => {
            set(node, { x: places[k][1].join(" ") || 0, y: one(y + bar / 2 + 4) });
            write(node, places[k][0]);
          });
          if (rank < ranks) {
            lines += "M" + LEFT + " " + one(y + bar / 2) + "H" + one(x(end));
            kept += "M" + one(room) + " " + one(y) + "h" + one(36 * held[rank] / wide) + "v" + one(bar) + "h" + one(-36 * held[rank] / wide) + "z";
          }
          set(row.name, { x: LEFT - 5, y: one(y + bar / 2 + 4) });
          set(row.held, { x: width, y: one(y + bar / 2 + 4) });
          write(row.name, rank < ranks ? String(rank) : "");
          write(row.held, rank < ranks ? String(held[rank]) : "");
        });
        paths.forEach((path, k) => set(path, { d: boxes[k] }));
        set(bars, { d: later });
        set(idle, { d: lines });
        set(memory, { d: kept });
        write(head, BOOK.format(values.simulated_share_of_total, "percent") + " of " + BOOK.format(values.simulated_seconds, "short duration") + " idle");
        label(column, "in flight", width, width, "end");
        let at = LEFT, line = 0;
        keys.forEach((entry, k) => {
          const there = boxes[k] !== "", long = 22 + 6.4 * entry.words.length;
          if (there && at + long > width && at > LEFT) { at = LEFT; line += 1; }
          set(entry.swatch, { x: there ? at : 0, y: there ? under + 34 + line * LINE : 0, visibility: there ? "visible" : "hidden" });
          set(entry.text, { x: there ? at + 16 : 0, y: there ? under + 44 + line * LINE : 0 });
          write(entry.text, there ? entry.words : "");
          if (there) at += long;
        });
        const step = roundUp(most / TICKS), shown = ticks.map((_, k) => k * step).filter(tick => tick <= most * 1.0001);
        set(axis, { d: "M" + LEFT + " " + one(under) + "H" + one(x(most)) + shown.map(tick => "M" + one(x(tick)) + " " + one(under) + "v5").join("") });
        ticks.forEach((tick, k) => {
          set(tick, { y: one(under + 20) });
          label(tick, k < shown.length ? BOOK.format(shown[k], "short duration") : "", k < shown.length ? x(shown[k]) : 0, width - RIGHT + 20, "middle");
        });
        set(ghost, { d: before === null ? "" : "M" + one(x(before)) + " " + (TOP - 4) + "V" + one(under) });
      }
    };
  }

  /* SchedulePicture.call: what "Copy as Python" gives. */
  function callOf(spec, values) {
    const sizes = spec.sizes.map(name => BOOK.pythonNumber(values[name])), words = ["forward", "input", "weight", "transfer", "last"];
    const times = words.map((word, k) => word + "=" + BOOK.pythonNumber(values[spec.seconds[k]]));
    return spec.plays + "(" + sizes.join(", ") + ",\n          " + times.join(", ") + ")";
  }

  BOOK.schedules = { planOf, costsOf, simulate, inFlight, callOf };
  BOOK.derived = { schedule: derived };
  BOOK.pictures.schedule = schedule;
})();
