/* Makes the card that bookkit/gradients.py wrote live: recorded gradients beside what a format holds. Classic script, no fetch; bits.js
   is there before it. Shares and words are those of coursekit/topics/mixed_precision/histogram.py; a test in a browser compares them. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, { format, written } = BOOK.bits, QUIET_MS = 700;

  function greatest(kind) { return kind.bias + (kind.infinities ? 0 : 1); }

  /* What becomes of a place: counts at 2^place and above, below the double. */
  function fate(kind, place) {
    const least = kind.least - kind.fractionBits;
    return place < least - 1 ? "lost" : place < kind.least ? "fewer" : place > greatest(kind) ? "overflow" : "kept";
  }

  function shares(sizes, kind, exponent) {
    const found = { lost: 0, fewer: 0, overflow: 0, kept: 0 };
    sizes.counts.forEach((count, k) => { found[fate(kind, sizes.first + k + exponent)] += count; });
    const total = sizes.counts.reduce((sum, count) => sum + count, 0);
    return { lost: found.lost / total, fewer: found.fewer / total, overflow: found.overflow / total };
  }

  function largestScale(sizes, kind, microbatches) { return greatest(kind) - (sizes.first + sizes.counts.length - 1) + microbatches; }

  function percent(share) {
    const text = share ? written(share * 100, 3) + "%" : "none";
    return text === "100%" && share < 1 ? "over 99.9%" : text;
  }
  function power(exponent) { return exponent === 0 ? "1" : "2^" + exponent; }
  function s(words) { return words === "none" ? "s" : ""; }
  function grouped(number) { return String(number).replace(/\B(?=(\d{3})+$)/g, ","); }

  function sentence(sizes, kind, microbatches, scale) {
    const found = shares(sizes, kind, scale - microbatches);
    const lost = percent(found.lost), fewer = percent(found.fewer), overflow = percent(found.overflow);
    return "Loss divided by " + grouped(2 ** microbatches) + ", times a scale of " + power(scale) + ": in " + kind.name + ", " + lost +
      " of the gradients become" + s(lost) + " 0, " + fewer + " keep" + s(fewer) + " fewer bits, " + overflow + " overflow" + s(overflow) + ".";
  }

  function detail(sizes, kind, microbatches) {
    const best = largestScale(sizes, kind, microbatches), lost = percent(shares(sizes, kind, best - microbatches).lost);
    return "The largest scale at which nothing overflows is " + power(best) + "; " + lost + " become" + s(lost) + " 0 there.";
  }

  // --- the picture --------------------------------------------------------------------------------------------------------

  const LEAST = -70, MOST = 24, HIGH = 132, TOP = 46;

  function tick(text, exponent) {
    write(draw(text, "tspan"), exponent ? "2" : "1");
    if (exponent) write(draw(text, "tspan", { class: "gradients-power", dy: -5 }), String(exponent));
  }

  function picture(svg, width) {
    const x = exponent => 4 + (exponent - LEAST) / (MOST - LEAST) * (width - 8), bottom = TOP + HIGH;
    const clip = place => Math.max(4, Math.min(width - 4, x(place)));
    svg.textContent = "";
    set(svg, { width, height: bottom + 24 });
    const zones = ["lost", "fewer", "kept", "overflow"].map(name => [name, draw(svg, "rect", { class: "gradients-zone " + name, y: TOP, height: HIGH })]);
    const edges = draw(svg, "path", { class: "gradients-edge" });
    [-60, -50, -40, -30, -20, -10, 0, 10, 20].forEach(exponent => {
      draw(svg, "path", { class: "axis", d: "M" + x(exponent) + " " + bottom + "v4" });
      if (width > 520 || exponent % 20 === 0) tick(draw(svg, "text", { class: "tick", x: x(exponent), y: bottom + 18, "text-anchor": "middle" }), exponent);
    });
    draw(svg, "path", { class: "axis", d: "M4 " + bottom + "H" + (width - 4) });
    const bars = { lost: draw(svg, "path", { class: "gradients-bars lost" }), fewer: draw(svg, "path", { class: "gradients-bars fewer" }),
      kept: draw(svg, "path", { class: "gradients-bars kept" }), overflow: draw(svg, "path", { class: "gradients-bars lost" }) };
    const heads = ["lost", "fewer", "overflow"].map(name => [name, draw(svg, "text", { class: "key" }), draw(svg, "text", { class: "strong" })]);

    return function (sizes, kind, exponent) {
      const least = kind.least - kind.fractionBits, top = greatest(kind) + 1, found = shares(sizes, kind, exponent);
      const borders = { lost: [LEAST, least - 1], fewer: [least - 1, kind.least], kept: [kind.least, top], overflow: [top, MOST] };
      zones.forEach(([name, zone]) => set(zone, { x: clip(borders[name][0]), width: Math.max(0, clip(borders[name][1]) - clip(borders[name][0])) }));
      set(edges, { d: [least - 1, kind.least, top].map(place => place > LEAST && place < MOST ? "M" + x(place) + " " + TOP + "v" + HIGH : "").join("") });
      const most = Math.max(...sizes.counts), paths = { lost: "", fewer: "", kept: "", overflow: "" };
      sizes.counts.forEach((count, k) => {
        const place = sizes.first + k + exponent, high = count ? Math.max(1, count / most * (HIGH - 6)) : 0;
        const from = clip(place) + 0.5, to = clip(place + 1) - 0.5;
        if (high && to > from) paths[fate(kind, place)] += "M" + from.toFixed(1) + " " + bottom + "V" + (bottom - high).toFixed(1) + "H" + to.toFixed(1) + "V" + bottom + "z";
      });
      Object.keys(paths).forEach(name => set(bars[name], { d: paths[name] }));
      /* Each head over its zone; where zones are narrow or out of sight, left, middle and right. */
      const words = { lost: "becomes 0", fewer: "fewer bits", overflow: "overflows" }, wide = Math.min(96, (width - 16) / 3);
      const middle = clip((Math.max(LEAST, borders.fewer[0]) + Math.min(MOST, borders.fewer[1])) / 2);
      const at = { lost: Math.max(wide / 2, Math.min(middle - wide, clip((LEAST + least - 1) / 2))), fewer: 0, overflow: width - wide / 2 - 4 };
      at.fewer = Math.max(at.lost + wide, Math.min(width - 1.5 * wide - 4, middle));
      heads.forEach(([name, key, share]) => {
        set(key, { x: at[name], y: 14, "text-anchor": "middle" });
        set(share, { x: at[name], y: 32, "text-anchor": "middle" });
        write(key, words[name]);
        write(share, percent(found[name]));
      });
    };
  }

  // --- the card -----------------------------------------------------------------------------------------------------------

  BOOK.gradients = function (id, data) {
    const root = document.getElementById(id), find = selector => root.querySelector(selector);
    root.querySelectorAll("input, select").forEach(control => { control.autocomplete = "off"; });
    const kinds = {}, menu = find("select"), status = find(".explorer-status"), place = find(".explorer-drawing");
    data.formats.map(format).forEach(kind => { kinds[kind.name] = kind; });
    const sliders = { microbatches: find("#" + id + "-microbatches"), scale: find("#" + id + "-scale") };
    const choices = Array.from(root.querySelectorAll("[type=radio]")), svg = draw(place, "svg", { role: "img", "aria-labelledby": id + "-words" });
    let at = Object.assign({}, data.start), width = 0, drawn = null, resting;

    function sizes() {
      const [, , first, counts] = data.sizes.find(([of, steps]) => of === at.of && steps === at.steps);
      return { first, counts };
    }

    function show() {
      const kind = kinds[at.kind], found = sizes();
      menu.value = at.of;
      choices.forEach(choice => { choice.checked = choice.value === String(choice.name === id + "-kind" ? at.kind : at.steps); });
      Object.keys(sliders).forEach(name => {
        const words = name === "scale" ? power(at.scale) : grouped(2 ** at.microbatches);
        sliders[name].value = at[name];
        set(sliders[name], { "aria-valuetext": words });
        write(find("#" + id + "-" + name + "-value"), words);
      });
      write(find(".explorer-sentence"), sentence(found, kind, at.microbatches, at.scale));
      write(find(".explorer-detail"), detail(found, kind, at.microbatches));
      if (drawn) drawn(found, kind, at.scale - at.microbatches);
    }

    function go(change) {
      Object.assign(at, change);
      show();
      clearTimeout(resting);
      status.textContent = "";
      resting = setTimeout(() => { status.textContent = find(".explorer-sentence").textContent; }, QUIET_MS);
    }

    menu.addEventListener("change", () => go({ of: menu.value }));
    Object.keys(sliders).forEach(name => sliders[name].addEventListener("input", () => go({ [name]: +sliders[name].value })));
    choices.forEach(choice => choice.addEventListener("change", () => go(choice.name === id + "-kind" ? { kind: choice.value } : { steps: +choice.value })));
    find(".explorer-reset").addEventListener("click", () => go(data.start));

    root.classList.add("live");
    show();
    new ResizeObserver(() => {
      if (!place.clientWidth || place.clientWidth === width) return;
      width = place.clientWidth;
      drawn = picture(svg, width);
      show();
    }).observe(place);
    root.setAttribute("data-ready", performance.now().toFixed(1));
    root.dispatchEvent(new CustomEvent("explorer:ready", { bubbles: true }));
  };

  Object.assign(BOOK.gradients, { shares, sentence, detail });
})();
