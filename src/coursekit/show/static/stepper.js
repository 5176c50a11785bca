/* Makes the cards that show/stepped.py wrote live: what goes step by step. Classic script, no fetch: it works from file://. The card
   calls BOOK.stepper(id, data); the script that the build writes calls BOOK.steppers.add(data) when the reader asks for another picture. What is drawn, and how steps follow from the data, is the affair of BOOK.steppers.kinds: chunks.js,
   shards.js, frames.js. A card has a menu, whose value is the name of what is shown, or radio buttons, whose values make it. Nothing moves unless
   the reader moves it. */
(function () {
  "use strict";

  const { set, draw, write } = BOOK.svg, QUIET_MS = 700, PLAY_MS = 1400;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  /* No line ends between a rank and its number. */
  function unbroken(text) { return text.replace(/(rank|chunk|unit) (?=[0-9A-H])/g, "$1\u00a0"); }

  const known = {}; // name -> number of ranks -> data

  BOOK.steppers = { kinds: {}, known: known, add: function (data) {
    for (const name in data) known[name] = Object.assign(known[name] || {}, data[name]);
  } };

  /* Runs `then` when the data are here; `script` brings those of every picture. */
  function fetched(script, name, n, then) {
    if (known[name] && known[name][n]) { then(); return; }
    const node = document.createElement("script");
    node.src = script;
    node.onload = then;
    document.head.append(node);
  }

  /* By its id, or where no document knows that (embed.js), the card itself. */
  BOOK.stepper = function (card, first) {
    BOOK.steppers.add(first);
    const root = card.nodeType ? card : document.getElementById(card), id = root.id, find = selector => root.querySelector(selector);
    root.querySelectorAll("input, select").forEach(control => { control.autocomplete = "off"; }); // a reload starts where the card starts
    const menu = find("select"), choices = Array.from(root.querySelectorAll("[type=radio]")), ranks = id + "-n", slider = find("[type=range]");
    const place = find(".explorer-drawing"), status = find(".explorer-status"), play = find(".stepper-play");
    const svg = draw(place, "svg", { role: "img", "aria-labelledby": id + "-words" });
    const rows = Array.from(root.querySelectorAll("tbody tr"), row => Array.from(row.cells, cell => cell.textContent));
    const given = Object.values(Object.values(first)[0])[0], drawn = BOOK.steppers.kinds[given.kind || (given.shards ? "shards" : "chunks")];
    const start = { name: Object.keys(first)[0], n: +Object.keys(Object.values(first)[0])[0], number: given.first || 1 };
    let at = Object.assign({}, start), data, steps, drawStep = null, width = 0, playing = null, resting;

    function show() {
      const last = steps.length - 1, where = at.number + " of " + last;
      slider.value = at.number;
      set(slider, { "aria-valuetext": "step " + where });
      write(find(".stepper-count"), where);
      root.querySelectorAll("[data-to]").forEach(button => set(button, {
        "aria-disabled": at.number === (/first|back/.test(button.dataset.to) ? 0 : last) }));
      write(find(".explorer-sentence"), unbroken(data.say[at.number][0]));
      write(find(".explorer-detail"), unbroken(data.say[at.number][1]));
      if (drawStep) drawStep(at.number);
    }

    /* Another name, or other ranks: a new picture, and room for the longest words, so that nothing below jumps. */
    function build() {
      data = known[at.name][at.n];
      data.say = data.say || rows; // the first picture's words stand in the table
      steps = drawn.follow(data);
      at.number = Math.min(at.number === null ? data.first : at.number, steps.length - 1);
      slider.max = steps.length - 1;
      if (menu) menu.value = at.name;
      choices.forEach(choice => { choice.checked = choice.name === ranks ? +choice.value === at.n : at.name.split(", ").includes(choice.value); });
      write(find(".explorer-title"), data.title || at.name[0].toUpperCase() + at.name.slice(1) + ", step by step");
      if (data.look) write(find(".stepper-look"), data.look);
      const longest = part => data.say.map(said => unbroken(said[part])).reduce((most, text) => text.length > most.length ? text : most);
      write(find(".stepper-room"), longest(0) + "\n" + longest(1)); // the sentence, and on a line of its own the detail
      drawStep = width ? drawn.picture(svg, data, steps, width) : null;
      show();
    }

    /* Screen readers hear the sentence once the reader rests; of a play, that of its end. */
    function announce() {
      clearTimeout(resting);
      status.textContent = "";
      if (!playing) resting = setTimeout(() => { status.textContent = data.say[at.number][0]; }, QUIET_MS);
    }

    function playOn(on) {
      clearInterval(playing);
      playing = on ? setInterval(next, PLAY_MS) : null;
      root.classList.toggle("playing", on);
      set(play, { "aria-label": on ? "Pause" : "Play" });
    }

    function go(number) {
      playOn(false);
      at.number = Math.max(0, Math.min(steps.length - 1, number));
      show();
      announce();
    }

    function next() {
      at.number++;
      show();
      if (at.number === steps.length - 1) playOn(false);
      announce();
    }

    function toggle() {
      if (playing) { go(at.number); return; }
      if (calm.matches) { go(at.number + 1); return; } // nothing moves by itself: one step
      if (at.number === steps.length - 1) at.number = -1;
      playOn(true);
      next();
    }

    let awaited = null; // the choice whose data are on their way: a second one, made meanwhile, adds to it

    function choose(change) {
      const chosen = awaited = Object.assign({}, awaited || at, change);
      playOn(false);
      fetched(root.dataset.script, chosen.name, chosen.n, () => {
        if (chosen !== awaited) return;
        at = chosen;
        awaited = null;
        build();
        announce();
      });
    }

    const moves = { first: () => go(0), back: () => go(at.number - 1), forward: () => go(at.number + 1), last: () => go(Infinity) };
    root.querySelectorAll("[data-to]").forEach(button => button.addEventListener("click", moves[button.dataset.to]));
    play.addEventListener("click", toggle);
    slider.addEventListener("input", () => go(+slider.value));
    if (menu) menu.addEventListener("change", () => choose({ name: menu.value, number: 1 }));
    choices.forEach(choice => choice.addEventListener("change", () => choose(choice.name === ranks ? { n: +choice.value } : { number: null,
      name: choices.filter(one => one.checked && one.name !== ranks).map(one => one.value).join(", ") })));
    find(".explorer-reset").addEventListener("click", () => choose(start));
    root.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, [type=radio]")) return;
      const key = { ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last" }[event.key];
      if (key) moves[key]();
      else if (event.key === " " && !event.target.closest("button")) toggle();
      else return;
      event.preventDefault();
    });
    calm.addEventListener("change", () => { if (playing) go(at.number); });
    document.addEventListener("visibilitychange", () => { if (playing) go(at.number); });

    root.classList.add("live");
    build();
    new ResizeObserver(() => { // the first picture is drawn in the first frame, when widths are known
      if (!place.clientWidth || place.clientWidth === width) return;
      width = place.clientWidth;
      set(svg, { width: width });
      drawStep = drawn.picture(svg, data, steps, width);
      drawStep(at.number);
      place.style.minHeight = ""; // the room of the first picture, from stepped.py
    }).observe(place);
    root.setAttribute("data-ready", performance.now().toFixed(1));
    root.dispatchEvent(new CustomEvent("explorer:ready", { bubbles: true }));
  };
})();
