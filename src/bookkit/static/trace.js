/* Zooms into the traces of a card (bookkit/traces.py): BOOK.trace. The paths are those that the build drew, for another span of
   time. Classic script. */
(function () {
  "use strict";

  window.BOOK = window.BOOK || {};
  const WIDTH = 1000, ROW = 20, BAR = 16, AS_ONE = 0.5, ARROWS = 40, MOST = 2000, STEP = 1.6;

  function duration(seconds, digits) {
    if (!seconds) return "0";
    const [size, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return +(seconds * size).toPrecision(digits || 3) + " " + unit;
  }

  function shape(trace, lane, kind, high, begin, end) {
    const scale = WIDTH / (end - begin), tall = BAR * high, y = lane * ROW + BAR - tall, parts = [];
    trace.spans.forEach(span => {
      if (span[0] !== lane || span[4] !== kind) return;
      let left = (span[1] * trace.unit - begin) * scale, right = ((span[1] + span[2]) * trace.unit - begin) * scale;
      if (right < 0 || left > WIDTH) return;
      left = Math.max(left, 0);
      right = Math.min(Math.max(right, left + AS_ONE), WIDTH);
      const last = parts[parts.length - 1];
      if (last && left - last[1] < AS_ONE) last[1] = Math.max(last[1], right);
      else parts.push([left, right]);
    });
    return parts.map(part => "M" + part[0].toFixed(1) + " " + y + "H" + part[1].toFixed(1) + "v" + tall + "H" + part[0].toFixed(1) + "z").join("");
  }

  function arrows(trace, looks, begin, end) {
    const scale = WIDTH / (end - begin), parts = [];
    const middle = span => span[0] * ROW + BAR * (1 - looks[trace.kinds[span[4]]][1] / 2);
    trace.spans.forEach(span => {
      if (span.length < 6) return;
      const launch = trace.spans[span[5]];
      const left = ((launch[1] + launch[2]) * trace.unit - begin) * scale, right = (span[1] * trace.unit - begin) * scale;
      if (Math.max(left, right) < 0 || Math.min(left, right) > WIDTH) return;
      parts.push("M" + left.toFixed(1) + " " + middle(launch) + "L" + right.toFixed(1) + " " + middle(span));
    });
    return parts.length <= ARROWS ? parts.join("") : "";
  }

  function trace(ident, looks) {
    const card = document.getElementById(ident), all = JSON.parse(card.querySelector(".trace-data").textContent);
    const svgs = Array.from(card.querySelectorAll(".trace-lanes svg")), ticks = card.querySelector(".trace-ticks");
    const readout = card.querySelector(".trace-readout"), tools = card.querySelector(".trace-tools");
    const whole = all.reduce((most, one) => one.spans.reduce((end, span) => Math.max(end, (span[1] + span[2]) * one.unit), most), 0);
    let begin = 0, end = whole, waiting = false;

    function draw() {
      waiting = false;
      svgs.forEach((svg, k) => svg.querySelectorAll("path").forEach(path => {
        const kind = path.getAttribute("class").slice(6);
        path.setAttribute("d", kind === "arrows" ? arrows(all[k], looks, begin, end) : shape(all[k], +path.dataset.lane, all[k].kinds.indexOf(kind), looks[kind][1], begin, end));
      }));
      const rough = (end - begin) / 5, scale = Math.pow(10, Math.floor(Math.log10(rough)));
      const step = [1, 2, 5, 10].find(round => round * scale >= rough * 0.999) * scale;
      ticks.textContent = "";
      for (let k = Math.ceil(begin / step - 1e-9); k * step <= end * 1.0001; k++) {
        const mark = ticks.appendChild(document.createElement("span"));
        const share = (k * step - begin) / (end - begin);
        mark.style.left = 100 * share + "%";
        if (share > 0.85) mark.className = "end";
        mark.textContent = duration(k * step, 6);
        const before = mark.previousElementSibling;  // on a phone the last two may meet
        if (before && before.getBoundingClientRect().right > mark.getBoundingClientRect().left) before.textContent = "";
      }
      tools.querySelectorAll("button").forEach(button => {
        const does = button.dataset.do, all = end - begin >= whole * 0.9999;
        button.disabled = does === "in" ? end - begin <= whole / MOST * 1.001 : does === "left" ? begin <= 0 : does === "right" ? end >= whole * 0.9999 : all;
      });
    }

    function show(from, wide) {
      wide = Math.min(Math.max(wide, whole / MOST), whole);
      begin = Math.min(Math.max(from, 0), whole - wide);
      end = begin + wide;
      if (!waiting) { waiting = true; window.requestAnimationFrame(draw); }
    }

    function zoom(factor, share) {
      const wide = (end - begin) / factor;
      show(begin + share * (end - begin - wide), wide);
    }

    function act(does) {
      if (does === "in") zoom(STEP, 0.5);
      else if (does === "out") zoom(1 / STEP, 0.5);
      else if (does === "whole") show(0, whole);
      else show(begin + (does === "left" ? -0.25 : 0.25) * (end - begin), end - begin);
    }

    /* The span under the pointer; of several the shortest. */
    function tell(svg, event) {
      const box = svg.getBoundingClientRect(), one = all[svgs.indexOf(svg)];
      const at = begin + (event.clientX - box.left) / box.width * (end - begin), near = 3 / box.width * (end - begin);
      const lane = Math.floor((event.clientY - box.top) / ROW);
      const found = one.spans.filter(span => span[0] === lane && span[1] * one.unit <= at + near && (span[1] + span[2]) * one.unit >= at - near)
        .sort((a, b) => a[2] - b[2])[0];
      readout.textContent = found ? one.names[found[3]] + ", " + looks[one.kinds[found[4]]][0] + ": " + duration(found[2] * one.unit) + " from "
        + duration(found[1] * one.unit, 5) + " on" : lane < one.lanes.length ? one.lanes[lane] + ": nothing at " + duration(at, 4) : "";
    }

    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "whole", Home: "whole" };
    tools.addEventListener("click", event => { if (event.target.dataset.do) act(event.target.dataset.do); });
    svgs.forEach(svg => {
      const pointers = new Map();
      let from = null; // where a drag or a pinch began
      const share = x => { const box = svg.getBoundingClientRect(); return (x - box.left) / box.width; };
      const start = () => { from = { begin, end, at: Array.from(pointers.values()) }; };
      svg.addEventListener("keydown", event => {
        if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        act(keys[event.key]);
      });
      svg.addEventListener("wheel", event => { // a page scrolls on, unless the reader has clicked here, or pinches
        if (!event.ctrlKey && document.activeElement !== svg) return;
        event.preventDefault();
        zoom(Math.pow(1.002, -event.deltaY), share(event.clientX));
      }, { passive: false });
      svg.addEventListener("dblclick", event => zoom(STEP * STEP, share(event.clientX)));
      svg.addEventListener("pointerdown", event => {
        svg.focus({ preventScroll: true });
        pointers.set(event.pointerId, share(event.clientX));
        svg.setPointerCapture(event.pointerId);
        start();
        tell(svg, event);
      });
      svg.addEventListener("pointermove", event => {
        if (!pointers.has(event.pointerId)) { tell(svg, event); return; }
        pointers.set(event.pointerId, share(event.clientX));
        const now = Array.from(pointers.values()), wide = from.end - from.begin;
        if (now.length === 1) show(from.begin - (now[0] - from.at[0]) * wide, wide);
        else {
          const spread = Math.abs(from.at[0] - from.at[1]) / Math.max(Math.abs(now[0] - now[1]), 0.02);
          const held = from.begin + (from.at[0] + from.at[1]) / 2 * wide;
          show(held - (now[0] + now[1]) / 2 * wide * spread, wide * spread);
        }
      });
      ["pointerup", "pointercancel", "lostpointercapture"].forEach(kind => svg.addEventListener(kind, event => {
        if (pointers.delete(event.pointerId) && pointers.size) start();
      }));
      svg.addEventListener("pointerleave", event => { // a finger that is lifted leaves, too
        if (!pointers.size && event.pointerType !== "touch") readout.textContent = "";
      });
    });
    draw();
  }

  BOOK.trace = trace;
})();
