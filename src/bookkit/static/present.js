/* One thing of a page on the whole screen: an explorer, a stepper, a figure, a trace, the planner, a question, a row of a plan. `f` over it or its button opens
   it; ?present in the address shows all of the page, one after the other, and ?present=NAME begins with that card. Arrows
   and a clicker's keys go on where nothing on the screen takes them; `a` shows the answer, Escape leaves. book.js loads
   this script when somebody asks for it, and calls BOOK_PRESENT. */
(function () {
  "use strict";
  var root = document.documentElement;
  var THINGS = ":is(.explorer, .planner, .figure, figure, .plotly-figure, .cell_output svg, .box-predict.asks, section:has(> [id^=plan-]) tbody tr)";
  var things = Array.prototype.slice.call(document.querySelectorAll(".bd-article " + THINGS))
    .filter(function (thing) {  /* an answer comes with its question; the figures of a lab, which it waits for, come after it; no solution comes */
      return !thing.parentElement.closest(THINGS + ", .tag_solution" + (thing.matches(".plotly-figure") ? "" : ", .answer"));
    });
  var shown = null, before = null, bar = null, over = null, hidden = null, folded = null;

  function make(name, className, text) {
    var element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }
  function button(text, key, act) {
    var one = make("button", "", text + " ");
    one.type = "button";
    one.appendChild(make("kbd", "", key));
    one.addEventListener("click", act);
    return one;
  }
  /* What answers a predict box is marked on the page; on the screen it is a copy, so that the page stays as it is. */
  function answerOf(box) {
    var marked = Array.prototype.slice.call(document.querySelectorAll(".box-predict, .answer"));
    var next = marked[marked.indexOf(box) + 1];
    return next && next.matches(".answer") ? next : null;
  }
  function open(thing) {
    if (shown) close(true); else before = document.activeElement;
    shown = thing;
    root.classList.add("presenting");
    thing.classList.add("presented");
    if (thing.matches("tr")) thing.closest("table").querySelectorAll("th").forEach(function (head, place) {
      if (thing.cells[place].textContent.trim()) thing.cells[place].dataset.head = head.textContent;
    });
    hidden = thing.closest(".answer[hidden]");
    if (hidden) hidden.removeAttribute("hidden");
    folded = thing.closest("details:not([open])");
    if (folded) folded.open = true;
    var answer = thing.matches(".box-predict") ? answerOf(thing) : thing.querySelector(".explorer-words, .stepper-words");
    bar = make("div", "present-bar");
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", "Presentation");
    var at = things.indexOf(thing);
    bar.appendChild(button("Back", "←", function () { go(-1); }));
    bar.appendChild(make("span", "", at + 1 + " of " + things.length));
    bar.appendChild(button("On", "→", function () { go(1); }));
    if (answer) bar.appendChild(button("Answer", "A", reveal));
    bar.appendChild(button("Leave", "Esc", leave));
    document.body.appendChild(bar);
    bar.querySelectorAll("button")[1].focus({ preventScroll: true });
    dispatchEvent(new Event("resize"));
  }
  function close(going) {
    shown.classList.remove("presented");
    if (hidden) hidden.setAttribute("hidden", "until-found");
    if (folded) folded.open = false;
    root.classList.remove("presenting", "answered");
    bar.remove();
    if (over) over.remove();
    shown = over = null;
    if (!going && before) before.focus({ preventScroll: true });
    dispatchEvent(new Event("resize"));
  }
  function leave() {
    var thing = shown;
    close(false);
    if (document.fullscreenElement) document.exitFullscreen();
    thing.scrollIntoView({ block: "nearest" });
  }
  function go(by) {
    var next = things[things.indexOf(shown) + by];
    if (next) open(next);
  }
  function reveal() {
    var answered = root.classList.toggle("answered");
    if (over) { over.remove(); over = null; }
    if (!answered || !shown.matches(".box-predict")) return;
    over = answerOf(shown).cloneNode(true);
    over.removeAttribute("hidden");
    if (over.matches("details")) over.open = true;
    over.classList.add("present-answer");
    [over].concat(Array.prototype.slice.call(over.querySelectorAll("[id]"))).forEach(function (one) { one.removeAttribute("id"); });
    document.body.appendChild(over);
  }
  function whole(thing) {
    open(thing);
    if (root.requestFullscreen) root.requestFullscreen().catch(function () { /* the window is the screen then */ });
  }

  document.addEventListener("keydown", function (event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    var typing = event.target.closest && event.target.closest("input:not([type=range]), textarea, select, [contenteditable]");
    if (!shown) return;
    var taken = typing || shown.contains(event.target);  /* arrows move what has the focus */
    var act = { Escape: leave, PageDown: function () { go(1); }, PageUp: function () { go(-1); } }[event.key];
    if (!act && !taken) act = { ArrowRight: function () { go(1); }, ArrowLeft: function () { go(-1); } }[event.key];
    if (!act && !typing && event.key === "a") act = reveal;
    if (!act && !typing && event.key === "f") act = leave;
    if (act) { event.preventDefault(); act(); }
  });
  document.addEventListener("fullscreenchange", function () { if (!document.fullscreenElement && shown) leave(); });

  /* The thing around an element, or of that name, or the first: on the whole screen where the browser allows it. */
  window.BOOK_PRESENT = function (asked) {
    var named = things.filter(function (thing) {
      var own = [thing.id, thing.dataset.explorer, thing.matches("tr") && thing.closest("section").querySelector("[id^=plan-]").id];
      return typeof asked === "string" ? asked && own.indexOf(asked) >= 0 : thing.contains(asked);
    });
    var inside = named[0];
    if (named.length > 1) things = named;  /* the rows of one plan are a deck */
    if (typeof asked === "string" && things.length) open(inside || things[0]);
    else if (inside && inside === shown) leave();
    else if (inside) whole(inside);
  };
})();
