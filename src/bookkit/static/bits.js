/* Makes the card that bookkit/bits.py wrote live: one number in six formats, bit by bit. Classic script, no fetch: it works from
   file://. Every number and every word is the one that coursekit/topics/mixed_precision/formats.py and explorer.py give; a test in a
   browser compares them. Patterns are whole numbers below 2^32, so every operation on them is exact. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, QUIET_MS = 700;

  // --- formats ------------------------------------------------------------------------------------------------------------

  function format([name, exponentBits, fractionBits, infinities]) {
    const bits = 1 + exponentBits + fractionBits, bias = 2 ** (exponentBits - 1) - 1, top = (2 ** exponentBits - 1) * 2 ** fractionBits;
    return { name, exponentBits, fractionBits, infinities: !!infinities, bits, bias, least: 1 - bias, sign: 2 ** (bits - 1),
      largest: infinities ? top - 1 : top + 2 ** fractionBits - 2 };
  }

  function decode(kind, pattern) {
    const negative = pattern >= kind.sign ? -1 : 1, size = pattern % kind.sign, fraction = size % 2 ** kind.fractionBits;
    const exponent = Math.floor(size / 2 ** kind.fractionBits);
    if (size > kind.largest) return kind.infinities && fraction === 0 ? negative * Infinity : NaN;
    if (exponent === 0) return negative * fraction * 2 ** (kind.least - kind.fractionBits);
    return negative * (2 ** kind.fractionBits + fraction) * 2 ** (exponent - kind.bias - kind.fractionBits);
  }

  /* The e of the largest 2^e that is not above a size: Math.log2 may be off by one beside a power of two. */
  function exponentOf(size) {
    let exponent = Math.max(-1022, Math.min(1023, Math.floor(Math.log2(size))));
    if (exponent > -1022 && 2 ** exponent > size) exponent--;
    if (exponent < 1023 && 2 ** (exponent + 1) <= size) exponent++;
    return exponent;
  }

  /* Of two equally near whole numbers the even one. */
  function roundHalfEven(number) {
    const below = Math.floor(number), rest = number - below;
    return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
  }

  function encode(kind, value) {
    const sign = value < 0 || Object.is(value, -0) ? kind.sign : 0, beyond = kind.infinities ? kind.largest + 1 : kind.largest;
    if (Number.isNaN(value)) return kind.infinities ? beyond + 2 ** (kind.fractionBits - 1) : kind.largest + 1;
    if (!Number.isFinite(value)) return sign + beyond;
    const size = Math.abs(value);
    const exponent = size === 0 ? kind.least : Math.max(exponentOf(size), kind.least);
    // in two steps: 2^(f - e) alone may be beyond the largest number
    const steps = roundHalfEven(size * 2 ** -exponent * 2 ** kind.fractionBits);
    return sign + Math.min((exponent - kind.least) * 2 ** kind.fractionBits + steps, beyond);
  }

  function nearest(kind, value) { return decode(kind, encode(kind, value)); }

  function neighbours(kind, pattern) {
    if (Number.isNaN(decode(kind, pattern))) return [NaN, NaN];
    const size = pattern % kind.sign, outward = size >= kind.largest ? Infinity : decode(kind, size + 1);
    const inward = size === 0 ? -decode(kind, 1) : decode(kind, size - 1);
    return pattern >= kind.sign ? [-outward, -inward] : [inward, outward];
  }

  // --- words --------------------------------------------------------------------------------------------------------------

  function written(value, digits) {
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value < 0 ? "-infinity" : "infinity";
    if (value === 0) return Object.is(value, -0) ? "-0" : "0";
    const [significand, exponent] = Math.abs(value).toExponential((digits || 9) - 1).split("e"), power = +exponent, sign = value < 0 ? "-" : "";
    const trimmed = significand.replace(/\.?0+$/, "");
    if (power < -4 || power >= 9) return sign + trimmed + "e" + power;
    const all = trimmed.replace(".", "");
    if (power < 0) return sign + "0." + "0".repeat(-power - 1) + all;
    return sign + (all.length <= power + 1 ? all.padEnd(power + 1, "0") : all.slice(0, power + 1) + "." + all.slice(power + 1));
  }

  function error(value, given) {
    if (value === given || (Number.isNaN(value) && Number.isNaN(given))) return "exact";
    if (!Number.isFinite(given) || !Number.isFinite(value)) return "too large for it";
    if (value === 0) return "lost: it becomes 0";
    return "off by " + written(Math.abs(value - given) / Math.abs(given) * 100, 3) + "%";
  }

  function around(kind, pattern) {
    const value = decode(kind, pattern), [below, above] = neighbours(kind, pattern);
    if (Number.isNaN(value)) return "not a number";
    if (!Number.isFinite(value)) return "beyond the largest number, " + written(decode(kind, kind.largest));
    if (above === Infinity) return "the largest number; below it " + written(below);
    if (below === -Infinity) return "the lowest number; above it " + written(above);
    return "next numbers " + written(below) + " and " + written(above);
  }

  function after(kind, value, step, total) {
    const plus = "plus " + written(step) + " it ";
    if (!Number.isFinite(value)) return plus + "stays " + written(value);
    if (total !== value) return plus + "becomes " + written(total);
    if (nearest(kind, step) === 0 && step !== 0) return plus + "stays: " + written(step) + " is 0 in this format";
    return step === 0 ? plus + "stays" : plus + "stays: less than half a spacing";
  }

  function row(kind, pattern, given, step) {
    const value = decode(kind, pattern), text = pattern.toString(2).padStart(kind.bits, "0");
    const total = nearest(kind, value + nearest(kind, step));
    const power = Number.isFinite(value) && value !== 0 ? Math.max(exponentOf(Math.abs(value)), kind.least) : 0;
    return { bits: [text[0], text.slice(1, 1 + kind.exponentBits), text.slice(1 + kind.exponentBits)].join(" "), value: written(value),
      significand: Number.isFinite(value) && value !== 0 ? written(value * 2 ** -power) : "", power, error: error(value, given),
      neighbours: around(kind, pattern), sum: after(kind, value, step, total), moves: Number.isFinite(value) && total !== value };
  }

  function sentence(rows, value, step) {
    const names = Object.keys(rows).filter(name => rows[name].moves);
    let who = names.length ? "only " + names.join(", ").replace(/, (?=[^,]*$)/, " and ") + " notice" : "no format notices";
    if (names.length === 1) who += "s";
    if (names.length === Object.keys(rows).length) who = "all six formats notice";
    return written(value) + " is " + rows.fp16.value + " in fp16 and " + rows.bf16.value + " in bf16. Add " + written(step) + ": " + who + ".";
  }

  /* What a reader types: 0.1, 65,504, -3e-5, 2^-24, inf, nan; undefined for anything else. */
  function parse(text) {
    const plain = text.trim().toLowerCase().replace(/[,_\s]/g, "").replace(/^[+]/, "").replace("\u2212", "-");
    const named = { __proto__: null, inf: Infinity, infinity: Infinity, "-inf": -Infinity, "-infinity": -Infinity, nan: NaN };
    if (plain in named) return named[plain];
    const power = /^(-?)2(?:\^|\*\*)(-?\d{1,4})$/.exec(plain);
    if (power) return (power[1] ? -1 : 1) * 2 ** +power[2];
    return /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?$/.test(plain) ? +plain : undefined;
  }

  /* Enough digits to come back to the same number. */
  function typed(value) {
    if (!Number.isFinite(value)) return written(value);
    return Object.is(value, -0) ? "-0" : String(value);
  }

  // --- the picture: which sizes a format has ------------------------------------------------------------------------------

  const LEAST = -152, MOST = 130, LANE = 19, LEFT = 42;

  function picture(svg, kinds, width) {
    const x = exponent => LEFT + (Math.max(LEAST, Math.min(MOST, exponent)) - LEAST) / (MOST - LEAST) * (width - LEFT - 10);
    const bottom = 8 + kinds.length * LANE;
    svg.textContent = "";
    set(svg, { width, height: bottom + 20 });
    [-40, -30, -20, -10, 0, 10, 20, 30].forEach(power => {
      const at = x(power * Math.log2(10));
      draw(svg, "path", { class: "grid", d: "M" + at + " 4V" + bottom });
      if (width > 520 || power % 20 === 0) write(draw(svg, "text", { class: "tick", x: at, y: bottom + 15, "text-anchor": "middle" }),
        power ? "1e" + power : "1");
    });
    kinds.forEach((kind, place) => {
      const y = 6 + place * LANE, from = kind.least - kind.fractionBits, to = exponentOf(decode(kind, kind.largest)) + 1;
      write(draw(svg, "text", { class: "name", x: LEFT - 6, y: y + 12, "text-anchor": "end" }), kind.name);
      draw(svg, "rect", { class: "bits-subnormal", x: x(from), y, width: x(kind.least) - x(from), height: LANE - 6 });
      draw(svg, "rect", { class: "bits-normal", x: x(kind.least), y, width: x(to) - x(kind.least), height: LANE - 6 });
    });
    const step = draw(svg, "path", { class: "bits-step" }), number = draw(svg, "path", { class: "bits-number" });
    return function (value, added) {
      [[number, value], [step, added]].forEach(([line, of]) => set(line, { d: Number.isFinite(of) && of !== 0 ?
        "M" + x(Math.log2(Math.abs(of))).toFixed(1) + " 1V" + (bottom + 2) : "" }));
    };
  }

  // --- the card -----------------------------------------------------------------------------------------------------------

  BOOK.bits = function (id, data) {
    const root = document.getElementById(id), find = selector => root.querySelector(selector);
    root.querySelectorAll("input, select").forEach(control => { control.autocomplete = "off"; });
    const kinds = data.formats.map(format), menu = find("select"), boxes = { value: find("#" + id + "-value"), step: find("#" + id + "-step") };
    const place = find(".explorer-drawing"), status = find(".explorer-status"), svg = draw(place, "svg", { role: "img", "aria-labelledby": id + "-words" });
    const cards = kinds.map(kind => find("[data-format=" + kind.name + "]"));
    const switches = cards.map(card => Array.from(card.querySelectorAll("[role=switch]")));
    let at, mark = null, width = 0, resting;

    /* `own` is the format whose bits the reader turned: its pattern is shown as it is, also of a NaN. */
    function go(change) {
      at = Object.assign({}, at, { own: null }, change);
      show();
      clearTimeout(resting);
      status.textContent = "";
      resting = setTimeout(() => { status.textContent = find(".explorer-sentence").textContent; }, QUIET_MS);
    }

    function show() {
      const rows = {};
      kinds.forEach((kind, number) => {
        const pattern = at.own === number ? at.pattern : encode(kind, at.value), shown = row(kind, pattern, at.value, at.step), card = cards[number];
        rows[kind.name] = shown;
        Array.from(shown.bits.replaceAll(" ", "")).forEach((bit, k) => {
          set(switches[number][k], { "aria-checked": bit === "1" });
          write(switches[number][k], bit);
        });
        write(card.querySelector(".bits-value"), shown.value);
        write(card.querySelector(".bits-significand"), shown.significand ? "= " + shown.significand + " × 2" : "");
        write(card.querySelector("sup"), shown.significand ? String(shown.power) : "");
        write(card.querySelector(".bits-error"), shown.error);
        write(card.querySelector(".bits-neighbours"), shown.neighbours);
        write(card.querySelector(".bits-sum"), shown.sum);
        card.classList.toggle("lost", !shown.moves);
      });
      Object.keys(boxes).forEach(name => {
        if (document.activeElement !== boxes[name] || parse(boxes[name].value) !== at[name]) boxes[name].value = typed(at[name]);
        refuse(boxes[name], "");
      });
      write(find(".explorer-sentence"), sentence(rows, at.value, at.step));
      if (mark) mark(at.value, at.step);
      const example = data.examples.findIndex(([value, step]) => Object.is(value, at.value) && step === at.step);
      menu.value = example < 0 ? "" : String(example);
    }

    function refuse(box, words) {
      set(box, { "aria-invalid": words ? "true" : "false" });
      write(find("#" + box.id + "-error"), words);
    }

    function typing(name) {
      const value = parse(boxes[name].value);
      if (value === undefined) refuse(boxes[name], "“" + boxes[name].value + "” is no number. Type one as 0.1, 6e-8, 2^-24, inf or nan.");
      else go({ [name]: value });
    }

    Object.keys(boxes).forEach(name => {
      boxes[name].addEventListener("input", () => typing(name));
      boxes[name].addEventListener("keydown", event => {
        const factor = { ArrowUp: 2, ArrowDown: 0.5 }[event.key];
        if (!factor) return;
        event.preventDefault();
        go({ [name]: at[name] * factor });
        boxes[name].value = typed(at[name]);
      });
      boxes[name].addEventListener("blur", () => { boxes[name].value = typed(at[name]); refuse(boxes[name], ""); });
    });

    menu.addEventListener("change", () => { const [value, step] = data.examples[+menu.value]; go({ value, step }); });
    find(".explorer-reset").addEventListener("click", () => { const [value, step] = data.examples[0]; go({ value, step }); });

    /* Arrow keys go from bit to bit, space and Enter turn one; Tab goes from format to format. */
    switches.forEach((bits, number) => {
      function turn(k) {
        const kind = kinds[number], power = 2 ** (kind.bits - 1 - k), before = at.own === number ? at.pattern : encode(kind, at.value);
        const pattern = before + (Math.floor(before / power) % 2 ? -power : power);
        go({ own: number, pattern, value: decode(kind, pattern) });
      }
      function focus(k) {
        bits.forEach((bit, other) => { set(bit, { tabindex: other === k ? 0 : -1 }); });
        bits[k].focus();
      }
      bits.forEach((bit, k) => {
        bit.addEventListener("click", () => { turn(k); focus(k); }); // focus lays the page out: once, when all is written
        bit.addEventListener("keydown", event => {
          if (event.ctrlKey || event.metaKey || event.altKey) return;
          const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: bits.length - 1 }[event.key];
          if (to !== undefined) focus(Math.max(0, Math.min(bits.length - 1, to)));
          else if (event.key === " " || event.key === "Enter") turn(k);
          else return;
          event.preventDefault();
        });
      });
    });

    root.classList.add("live");
    at = { value: data.examples[0][0], step: data.examples[0][1], own: null };
    show();
    new ResizeObserver(() => {
      if (!place.clientWidth || place.clientWidth === width) return;
      width = place.clientWidth;
      mark = picture(svg, kinds, width);
      mark(at.value, at.step);
    }).observe(place);
    root.setAttribute("data-ready", performance.now().toFixed(1));
    root.dispatchEvent(new CustomEvent("explorer:ready", { bubbles: true }));
  };

  Object.assign(BOOK.bits, { format, decode, encode, neighbours, written, row, sentence, parse });
})();
