/* Makes the cards that show/card.py wrote live. Classic script, no fetch: it works from file://. The card calls
   BOOK.start(id) while the rest of the page is still being read. SVG nodes are made once and moved; nothing moves unless the
   reader moves it. Quantities are computed by BOOK.models[name], generated from the formulas. */
(function () {
  "use strict";

  const QUIET_MS = 700; // how long the reader must rest before the sentence is announced
  const LATE_MS = 100; // how long the hand must rest before pictures out of sight are drawn
  const FADE_MS = 900; // as long as the transition of .fading in explorer.css, and a frame more
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const format = BOOK.format, parse = BOOK.parse, { set, draw, write } = BOOK.svg;

  /* No line ends between a number and its unit. */
  function unbroken(text) { return text.replace(/(\d) (?=[A-Za-z])/g, "$1\u00a0"); }

  // --- what follows from what: show/links.py -----------------------------------------------------------------------------------

  const FARTHEST = 100000; // how far a divisor is looked for

  function whole(value) { return typeof value === "number" && Number.isSafeInteger(value) && value >= 1; }

  /* The divisor of a number that is nearest to `near`, the larger of two. */
  function nearestDivisor(number, near, among) {
    if (among.length) {
      return among.filter(one => number % one === 0).sort((one, other) => Math.abs(one - near) - Math.abs(other - near) || other - one)[0];
    }
    near = Math.min(near, number);
    for (let step = 0; step < Math.min(near, FARTHEST); step++) {
      if (number % (near + step) === 0) return near + step;
      if (number % (near - step) === 0) return near - step;
    }
  }

  const LINKS = {
    ratio({ follower, leader }, values, place, set, preset) {
      const ours = preset[follower], theirs = preset[leader];
      if (place(leader) === Infinity || place(follower) < Infinity || ours === undefined || !whole(values[leader])) return;
      const doubled = 2 * values[leader] * ours + theirs;
      set(follower, Math.max(1, (doubled - doubled % (2 * theirs)) / (2 * theirs)));
    },
    least({ follower, leader }, values, place, set, preset) {
      if (place(leader) === place(follower) || preset[follower] === undefined || !whole(values[leader])) return;
      set(follower, Math.max(preset[follower], values[leader]));
    },
    most({ follower, leader, less, least }, values, place, set) { // NaN and text are above nothing
      if (!whole(values[follower]) || typeof values[leader] !== "number" || !(values[follower] + less > values[leader])) return;
      if (place(follower) < place(leader)) set(leader, values[follower] + less);
      else if (place(leader) < Infinity) set(follower, Math.max(least, values[leader] - less));
    },
    back(link, values, place, set) {
      if (place(link.follower) === Infinity && link.leaders.some(name =>
        place(name) < Infinity && (link.above === null || typeof values[name] === "number" && values[name] > link.above))) set(link.follower, link.value);
    },
    divides(link, values, place, set) {
      const divisor = values[link.divisor], multiple = values[link.multiple], rest = multiple % divisor;
      if (!whole(divisor) || !whole(multiple) || !rest || !link.when.every(pair => values[pair[0]] === pair[1])) return;
      if ([link.divisor, link.multiple, ...link.when.map(pair => pair[0])].every(name => place(name) === Infinity)) return;
      if (place(link.multiple) < place(link.divisor)) {
        const found = nearestDivisor(multiple, divisor, link.among);
        if (found) set(link.divisor, found);
      } else set(link.multiple, multiple - rest + (2 * rest > divisor || multiple < divisor ? divisor : 0));
    },
    some({ follower, leader }, values, place, set) {
      if (place(leader) < Infinity && values[leader] !== 0 && values[follower] === 0) set(follower, 1);
    },
    instead({ names, instead, leader }, values, place, set, preset) {
      const chosen = values[leader] === 0 ? names : instead;
      names.forEach((name, k) => { if (chosen[k] in preset) set(name, preset[chosen[k]]); });
    },
    product(link, values, place, set) {
      const product = values[link.product], first = values[link.first], second = values[link.second];
      const [ofProduct, ofFirst, ofSecond] = [link.product, link.first, link.second].map(place);
      if (Math.min(ofProduct, ofFirst, ofSecond) === Infinity || !whole(second)) return;
      if (ofFirst < Math.min(ofProduct, ofSecond)) { if (whole(first)) set(link.product, first * second); }
      else if (whole(product) && product % second === 0) set(link.first, product / second);
    }
  };

  /* The values with all that follows from those that moved: settle of show/links.py. */
  BOOK.follow = function (links, values, moved, preset) {
    values = Object.assign({}, values);
    moved = moved.slice();
    const place = name => moved.includes(name) ? moved.indexOf(name) : Infinity;
    const set = (name, value) => { values[name] = value; if (!moved.includes(name)) moved.push(name); };
    links.forEach(() => links.forEach(link => LINKS[link.kind](link, values, place, set, preset)));
    return values;
  };

  // --- the card ---------------------------------------------------------------------------------------------------------------

  /* The equations of a card, in a script of their own. */
  BOOK.why = function (name, html) {
    document.getElementById("explorer-" + name).querySelector(".explorer-why").insertAdjacentHTML("beforeend", html);
  };

  /* Where a control says that its value is refused. */
  function errorOf(row, name) {
    const error = row.appendChild(document.createElement("p"));
    error.className = "explorer-error";
    error.id = name + "-error";
    error.hidden = true;
    return error;
  }

  /* A menu's table as one object of quantities for each choice. */
  function presetsOf(menu) {
    return Object.fromEntries(Object.entries(menu.presets).map(([name, values]) =>
      [name, Object.fromEntries(menu.quantities.map((quantity, k) => [quantity, values[k]]))]));
  }

  /* By its id, or where no document knows that (embed.js), the card itself. */
  BOOK.start = function (card) {
    const root = card.nodeType ? card : document.getElementById(card), id = root.id, find = selector => root.querySelector(selector);
    root.querySelectorAll("input, select").forEach(control => { control.autocomplete = "off"; }); // a reload starts where the card starts
    const spec = JSON.parse(find("script[type='application/json']").textContent), model = BOOK.models[spec.name];
    const pinned = find(".explorer-pinned"), status = find(".explorer-status"), why = find(".explorer-why");
    const python = find(".explorer-python");
    let values = Object.assign({}, spec.values); // as the reader set them, valid or not
    let hand = { before: values, moved: [] }; // what it is on, the values before it moved that, the quantities that it moved
    let along = ""; // what followed the last valid move, in words
    let chosen = Object.assign({}, spec.chosen); // the last choice in each menu
    let shown = null; // everything computed from the last valid values
    let resting, later; // timers of the announcement, and of pictures out of sight

    const controls = spec.controls.map(control => {
      const row = find(".explorer-control[data-quantity=" + control.quantity + "]"), group = row.closest("details");
      let stops = control.stops;
      if (stops.range) stops = Array.from({ length: stops.range[1] - stops.range[0] + 1 }, (_, k) => stops.range[0] + k);
      return { quantity: control.quantity, label: row.querySelector("label, span").textContent, stops: stops, style: control.style || "exact", group: group, error: errorOf(row, spec.name + "-" + control.quantity),
        box: row.querySelector("[type=text]"), slider: row.querySelector("[type=range]"),
        said: "", choice: row.querySelector("[role=radiogroup]"), buttons: Array.from(row.querySelectorAll("[type=radio]")) };
    });
    const menus = spec.menus.map(menu => ({ kind: menu.kind, beside: menu.beside || [], presets: presetsOf(menu), names: Object.keys(menu.presets),
      select: find("[data-kind='" + menu.kind + "']") }));
    const sentence = find(".explorer-sentence"), detail = find(".explorer-detail");
    const drawings = Array.from(root.querySelectorAll(".explorer-drawing"), (place, k) => {
      const svg = draw(place, "svg", { role: "img", "aria-labelledby": id + "-words " + id + "-detail" });
      const made = BOOK.pictures[spec.pictures[k].kind](svg, spec.pictures[k]);
      return { place: place, svg: svg, picture: made, width: 0 };
    });
    const tabs = Array.from(root.querySelectorAll(".explorer-tabs [type=radio]"));

    // -- what the values give

    function presetValues() {
      return Object.assign({}, ...menus.map(menu => menu.presets[chosen[menu.kind]]));
    }

    /* The quantities of a menu's choice that are in its preset, or those that the menu sets beside it: any choice sets these anew. */
    function partOf(menu, beside) {
      return Object.fromEntries(Object.entries(menu.presets[chosen[menu.kind]]).filter(([name]) => menu.beside.includes(name) === beside));
    }

    /* A table of positions that grew with the sequence leaves its preset in force. */
    function holds(menu, preset) {
      const grown = Object.fromEntries(spec.links.filter(link => link.kind === "least").map(link => [link.follower, values[link.leader]]));
      return Object.keys(preset).every(name => menu.beside.includes(name) || values[name] === preset[name] || (grown[name] > preset[name] && values[name] === grown[name]));
    }

    /* What the card leaves, what it is short of, and whether it holds all: MemoryBar.room of show/pictures.py. */
    function withRoom(computed) {
      if (!spec.card) return computed;
      const left = computed[spec.card[0]] - computed[spec.card[1]];
      return Object.assign(computed, { free_bytes: Math.max(left, 0), missing_bytes: Math.max(-left, 0), fits: left >= 0 ? 1 : 0 });
    }

    /* What a picture finds by playing a schedule: Explorer.with_derived of show/spec.py. */
    function withDerived(computed) {
      spec.pictures.filter(picture => picture.kind === "schedule").forEach(picture => {
        Object.assign(computed, BOOK.derived[picture.kind](picture, computed));
      });
      return computed;
    }

    function say(pieces) {
      return pieces.map(piece => {
        const holds = pair => shown[pair[0]] === pair[1];
        const said = (piece.when || []).every(holds) && !(piece.unless || []).some(holds);
        return said ? piece.text.replace(/\{(\w+):([^}]+)\}/g, (_, name, style) => format(shown[name], style)) : "";
      }).join("");
    }

    /* What followed the reader's hand: say_along of show/spec.py. */
    function sayAlong() {
      const said = spec.followers.filter(([name]) => !hand.moved.includes(name) && values[name] !== hand.before[name]).map(([name, words, style]) => {
        const control = controls.find(control => control.quantity === name), place = control && control.choice ? control.stops.indexOf(values[name]) : -1;
        return words + " to " + (place < 0 ? BOOK.formatToType(values[name], style) : control.buttons[place].parentNode.textContent);
      }).join(", ");
      return said && " Moved along: " + said + ".";
    }

    /* At which values a notebook measured, where a hand has moved them since: what was measured stays. Points along a curve have their own
       value of what is swept. */
    function measuredAt() {
      const moved = controls.filter(({ quantity, choice }) => !choice && shown[quantity] !== spec.values[quantity] &&
        !spec.pictures.some(picture => picture.sweep === quantity));
      if (moved.length > 2) return " where the explorer began";
      return moved.map(({ quantity, label, style }, k) =>
        (k ? " and " : " with ") + label + " " + BOOK.formatToType(spec.values[quantity], style)).join("");
    }

    function sentenceNow() { return say(spec.sentence) + along; }

    /* The sentence of a refusal in the reader's words: Explorer.refusal of show/spec.py. */
    function inWords(refused) {
      const labels = {}, must = refused.quantity + " must be ", at = controls.find(control => control.quantity === refused.quantity);
      let text = refused.message;
      controls.forEach(({ quantity, label, style }) => {
        labels[quantity] = "“" + label + "”";
        const value = values[quantity];
        if (typeof value !== "number") return;
        const shown = BOOK.show(value).replace(/[.+]/g, "\\$&");
        text = text.replace(new RegExp("\\b" + quantity + " = " + shown, "g"), quantity + " = " + BOOK.formatToType(value, style));
      });
      if (text.includes(must)) {
        text = text.replace(must, "it must be ").replace(/(at least |above |at most )([\d,]+)/g,
          (_, words, limit) => words + format(+limit.replace(/,/g, ""), at ? at.style : "exact"));
      }
      return text.replace(/\b(?:\w+(?= = )|[a-z]+(?:_[a-z]+)+)/g, name => labels[name] || name.replace(/_/g, " "));
    }

    /* Where a refusal is said: at the quantity's own control, or at the one that moved. */
    function controlFor(quantity, changed) {
      return [quantity, changed].map(name => controls.find(control => control.quantity === name)).find(Boolean) ||
        controls[0];
    }

    function refresh(changed) {
      let refused = null;
      try {
        shown = withDerived(withRoom(model(values)));
      } catch (error) {
        if (!(error instanceof BOOK.InvalidQuantity)) throw error;
        refused = error;
      }
      const at = refused && controlFor(refused.quantity, changed), message = refused && inWords(refused);
      controls.forEach(control => showControl(control, control === at ? message : "", !changed || changed === control.quantity));
      menus.forEach(menu => {
        const last = chosen[menu.kind], name = holds(menu, menu.presets[last]) ? last : menu.names.find(name => holds(menu, menu.presets[name]));
        if (name) chosen[menu.kind] = name;
        if (!changed || name !== menu.name) menu.select.value = name || "";
        menu.name = name;
      });
      root.classList.toggle("stale", !!refused);
      if (!refused) {
        redraw();
        along = sayAlong();
        write(sentence, unbroken(sentenceNow()));
        write(detail, unbroken(say(spec.detail)));
        if (why && why.open) fillEquations();
      }
      parts.forEach(part => part(refused ? null : shown));
      if (!python.hidden) write(python, call());
      return message;
    }

    /* What is as it should be is left alone, so that the browser has nothing to lay out. A control may show another value than its own
       where the reader has just `touched` it. */
    function showControl(control, error, touched) {
      const value = values[control.quantity];
      if (control.choice) {
        const place = control.stops.indexOf(value);
        control.buttons.forEach((button, k) => { if (button.checked !== (k === place)) button.checked = k === place; });
      } else if (value !== control.value || (touched && (control.box.value !== control.text || control.slider.value !== control.place))) {
        const text = BOOK.formatToType(value, control.style);
        if (root.getRootNode().activeElement !== control.box && control.box.value !== text) control.box.value = text;
        if (typeof value === "number") {
          const above = control.stops.findIndex(stop => stop > value), place = Math.max(0, (above < 0 ? control.stops.length : above) - 1);
          if (+control.slider.value !== place) control.slider.value = place;
        }
        set(control.slider, { "aria-valuetext": text });
        Object.assign(control, { value: value, text: text, place: control.slider.value });
      }
      if (error && control.group) control.group.open = true; // what is refused is not folded away
      if (error === control.said) return;
      control.said = error;
      (control.choice ? [control.choice] : [control.box, control.slider]).forEach(input => {
        if (error) { input.setAttribute("aria-invalid", "true"); input.setAttribute("aria-describedby", control.error.id); }
        else { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); }
      });
      write(control.error, error);
      control.error.hidden = !error;
    }

    /* A picture out of sight, or behind a tab, waits until the hand rests, or the reader comes near. */
    function redraw() {
      drawings.forEach(drawing => { if (drawing.far || drawing.behind) drawing.late = true; else drawOne(drawing); });
      clearTimeout(later);
      root.late = drawings.some(drawing => drawing.late);
      if (root.late) later = setTimeout(drawLate, LATE_MS);
    }

    function drawOne(drawing) {
      drawing.late = false;
      if (drawing.width) drawing.picture.draw(shown, drawing.width, measuredAt());
    }

    function drawLate() {
      drawings.forEach(drawing => { if (drawing.late) drawOne(drawing); });
      root.late = false;
    }

    /* Screen readers hear the sentence, or the refusal, once the reader rests. */
    function announce(refusal) {
      clearTimeout(resting);
      status.textContent = "";
      resting = setTimeout(() => { status.textContent = refusal || sentenceNow(); }, QUIET_MS);
    }

    // -- the ghost: the picture as it was before the hand moved

    let fading;

    function keepGhost() {
      clearTimeout(fading);
      if (root.classList.contains("ghosted") && !root.classList.contains("fading")) return;
      root.classList.remove("fading");
      root.classList.add("ghosted");
      drawings.forEach(drawing => drawing.picture.ghost(shown));
    }

    function dropGhost() {
      root.classList.remove("ghosted", "fading");
      drawings.forEach(drawing => drawing.picture.ghost(null));
      redraw();
    }

    /* A ghost fades slowly. A reader who wants no motion sees none: the ghost goes before the next frame is drawn. */
    function releaseGhost() {
      clearTimeout(fading);
      if (calm.matches) { dropGhost(); return; }
      root.classList.add("fading");
      fading = setTimeout(dropGhost, FADE_MS);
    }

    // -- what the reader does

    /* Moves of one control after another count as one, so that what followed comes back with it: Hand of show/spec.py. */
    function layHand(on, moved) {
      if (on !== hand.on) hand = { on: on, before: values };
      hand.moved = moved;
    }

    function move(quantity, value) {
      keepGhost();
      layHand(quantity, [quantity]);
      values = BOOK.follow(spec.links, Object.assign({}, hand.before, { [quantity]: value }), hand.moved, presetValues());
      announce(refresh(quantity));
    }

    controls.forEach(control => {
      if (control.choice) {
        control.buttons.forEach((button, place) => button.addEventListener("change", () => {
          move(control.quantity, control.stops[place]);
          releaseGhost();
        }));
        return;
      }
      let onShow = ""; // in the box before the reader types
      const typed = () => parse(control.box.value, control.style, onShow);
      control.box.addEventListener("focus", () => { onShow = control.box.value; });
      set(control.box, { inputmode: "decimal", spellcheck: "false" });
      control.slider.max = control.stops.length - 1;
      control.slider.addEventListener("input", () => move(control.quantity, control.stops[+control.slider.value]));
      control.slider.addEventListener("change", releaseGhost);
      control.box.addEventListener("input", () => {
        if (control.box.value.trim()) move(control.quantity, typed()); // an empty box is about to be filled
      });
      control.box.addEventListener("change", () => {
        const value = typed();
        if (value !== values[control.quantity]) move(control.quantity, value);
        if (typeof value === "number") control.box.value = onShow = BOOK.formatToType(value, control.style);
        releaseGhost();
      });
      control.box.addEventListener("keydown", event => {
        const step = { ArrowUp: 1, ArrowDown: -1 }[event.key], value = values[control.quantity];
        if (!step || typeof value !== "number") return;
        event.preventDefault();
        const next = step > 0 ? control.stops.find(stop => stop > value) : control.stops.filter(stop => stop < value).pop();
        if (next === undefined) return;
        move(control.quantity, next);
        control.box.value = onShow = BOOK.formatToType(next, control.style);
        releaseGhost();
      });
    });

    menus.forEach(menu => menu.select.addEventListener("change", () => {
      if (!menu.select.value) return;
      keepGhost();
      chosen[menu.kind] = menu.select.value;
      const preset = menu.presets[menu.select.value];
      layHand(menu.kind, Object.keys(preset));
      values = BOOK.follow(spec.links, Object.assign({}, hand.before, ...menus.map(menu => partOf(menu, true)), preset), hand.moved, presetValues());
      announce(refresh());
      releaseGhost();
    }));

    find(".explorer-reset").addEventListener("click", () => {
      keepGhost();
      values = Object.assign({}, spec.values);
      hand = { before: values, moved: [] };
      chosen = Object.assign({}, spec.chosen);
      announce(refresh());
      releaseGhost();
    });

    function turnTo(chosen) {
      drawings.slice(1).forEach((drawing, place) => {
        drawing.behind = place !== chosen;
        drawing.place.parentNode.classList.toggle("behind", drawing.behind);
        if (drawing.late && !drawing.behind) drawOne(drawing);
      });
    }

    tabs.forEach((tab, place) => tab.addEventListener("change", () => turnTo(place)));

    // -- why: the equations with the reader's numbers in them come in a script, with the code of why.js, when they are asked for

    let asked = false, fillEquations = () => {};

    if (why) why.addEventListener("toggle", () => {
      if (!why.open || !shown) return;
      if (asked) { fillEquations(); return; }
      asked = true;
      if (!why.dataset.script) { fillEquations = BOOK.reasons(root, () => shown, unbroken); return; } // they stand in the card
      const script = document.createElement("script"); // calls BOOK.why; a script and no fetch, so that it works from file://
      script.src = why.dataset.script;
      script.onload = () => { fillEquations = BOOK.reasons(root, () => shown, unbroken); };
      document.head.append(script);
    });

    // -- the same call in Python

    function call() {
      if (spec.pictures[0].plays) return BOOK.schedules.callOf(spec.pictures[0], values);
      const preset = Object.assign({}, ...menus.map(menu => partOf(menu, false))), asked = spec.asked.map(place => spec.inputs[place]);
      const own = asked.filter(name => preset[name] !== values[name]);
      const gives = menu => Object.keys(partOf(menu, false)).some(name => asked.includes(name) && !own.includes(name));
      const presets = menus.filter(gives)
        .map(menu => menu.kind + "=" + JSON.stringify(chosen[menu.kind]));
      const lines = [presets.join(", "), own.map(name => name + "=" +
        (typeof values[name] === "number" ? BOOK.pythonNumber(values[name]) : JSON.stringify(values[name]))).join(", ")];
      return "from coursekit.formulas import explain\n\nexplain([" + spec.outputs.map(name => JSON.stringify(name)).join(", ") + "]" +
        lines.filter(Boolean).map(line => ",\n        " + line).join("") + ")";
    }

    find(".explorer-copy").addEventListener("click", event => {
      python.hidden = false;
      write(python, call());
      const button = event.currentTarget;
      copy(python).then(copied => {
        const words = copied ? "Copied" : "Press Ctrl+C to copy";
        write(button, words);
        status.textContent = words;
        setTimeout(() => write(button, "Copy as Python"), 2000);
      });
    });

    function copy(node) {
      const range = document.createRange(), selection = window.getSelection();
      range.selectNodeContents(node);
      selection.removeAllRanges();
      selection.addRange(range); // also what the reader sees, and what Ctrl+C takes where a script may not copy
      const byCommand = () => { try { return document.execCommand("copy"); } catch (refused) { return false; } };
      if (!navigator.clipboard) return Promise.resolve(byCommand());
      return navigator.clipboard.writeText(node.textContent).then(() => { selection.removeAllRanges(); return true; }, byCommand);
    }

    // -- parts beside the pictures, and planners on the page: they read what is shown, and set several values at once

    const hands = { spec: spec, presets: Object.fromEntries(menus.map(menu => [menu.kind, menu.presets])), values: () => values,
      chosen: () => Object.assign({}, chosen), move: (quantity, value) => { move(quantity, value); releaseGhost(); } };
    hands.set = (changes, choices) => {
      keepGhost();
      Object.assign(chosen, choices);
      layHand(null, Object.keys(changes));
      values = Object.assign({}, values, ...spec.inputs.filter(name => name in changes).map(name => ({ [name]: changes[name] })));
      announce(refresh());
      releaseGhost();
    };
    root.hands = hands;
    const parts = (spec.parts || []).map(part => BOOK.parts[part](root, hands));

    // -- alive

    // The first picture is drawn in the first frame, when widths are known; asking for them now would lay the page out twice.
    root.classList.add("live");
    if (tabs.length) turnTo(0);
    refresh();
    const widths = new ResizeObserver(() => drawings.forEach(drawing => {
      const width = drawing.place.clientWidth;
      if (!width || width === drawing.width) return;
      drawing.width = width;
      set(drawing.svg, { width: width, height: drawing.place.clientHeight }); // the room that show/pictures.py keeps
      drawOne(drawing);
    }));
    // On a phone what is pinned covers the top of the screen: what gets the focus comes to lie below it.
    new ResizeObserver(() => root.style.setProperty("--pinned", pinned.offsetHeight + "px")).observe(pinned);
    const sight = new IntersectionObserver(seen => seen.forEach(one => {
      drawings.find(drawing => drawing.place === one.target).far = !one.isIntersecting;
      if (one.isIntersecting) drawLate();
    }), { rootMargin: "100px" });
    drawings.forEach(drawing => { widths.observe(drawing.place); sight.observe(drawing.place); });
    addEventListener("beforeprint", drawLate);
    root.setAttribute("data-ready", performance.now().toFixed(1));
    root.dispatchEvent(new CustomEvent("explorer:ready", { bubbles: true }));
  };
})();
