/* A predict box takes a prediction, locks it and shows the answer that the author has marked. Predictions stay in this
   browser. Without a script the answer is simply there; find-in-page, a link into it and paper open it too. */
(function () {
  "use strict";
  var page = location.pathname.split("/").slice(-2).join("/");

  function make(name, className, text) {
    var element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }
  /* Some browsers keep nothing for a page that is a file; then a prediction lasts as long as the page. */
  function kept(key) { try { return localStorage.getItem(key); } catch (refused) { return null; } }
  function keep(key, text) {
    try { if (text === null) localStorage.removeItem(key); else localStorage.setItem(key, text); } catch (refused) { /* as above */ }
  }

  function target() {
    try { return document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch (broken) { return null; }
  }

  /* The answer to a box is the next that is marked, if no other box comes first. */
  var marked = Array.prototype.slice.call(document.querySelectorAll(".box-predict.asks, .answer"));
  function answerTo(box) {
    var next = marked[marked.indexOf(box) + 1];
    if (!next || !next.matches(".answer")) return null;
    if (next.matches("details")) return {
      show: function () { next.open = true; },
      hide: function () { next.open = false; },
      shown: function () { return next.open; },
      watch: function (changed) { next.addEventListener("toggle", changed); }
    };
    function reveal() { next.removeAttribute("hidden"); next.dispatchEvent(new Event("toggle")); } // as details say it: book.js hears
    return {
      show: reveal,
      hide: function () { next.setAttribute("hidden", "until-found"); },
      shown: function () { return !next.hasAttribute("hidden"); },
      watch: function (changed) {
        next.addEventListener("beforematch", function () { setTimeout(function () { reveal(); changed(); }); });
        addEventListener("hashchange", open);
        open();
        function open() {
          var found = target();
          if (found && next.contains(found)) { reveal(); changed(); found.scrollIntoView(); }
        }
      }
    };
  }

  Array.prototype.forEach.call(document.querySelectorAll(".box-predict.asks"), function (box, number) {
    var question = box.textContent.replace(/\s+/g, " ").trim();
    var key = "prediction " + page + " " + question.slice(0, 80);
    var answer = answerTo(box);
    var room = make("div", "predict-room");
    var label = make("label", "", "Your prediction");
    var field = make("input");
    var lock = make("button", "", answer ? "Lock it and look" : "Lock it");
    var skip = make("button", "predict-skip", "Look without one");
    var locked = make("p", "predict-locked");
    var words = make("q");
    var again = make("button", "predict-skip", "Predict again");
    field.type = "text";
    field.maxLength = 500;
    field.autocomplete = "off";
    field.id = "prediction-" + number;
    label.htmlFor = field.id;
    lock.type = skip.type = again.type = "button";
    locked.setAttribute("role", "status");
    locked.append("Locked: ", words);
    room.append(label, field, lock);
    if (answer) room.append(skip);
    room.append(locked, again);
    box.appendChild(room);

    var text = kept(key);
    function show() {
      var is = text !== null;
      label.hidden = field.hidden = lock.hidden = is;
      locked.hidden = again.hidden = !is;
      words.textContent = text || "";
      skip.hidden = is || !answer || answer.shown();
    }
    function set(said) {
      text = said;
      keep(key, said);
      if (answer) { if (said === null) answer.hide(); else answer.show(); }
      show();
      (said === null ? field : again).focus();
    }
    function enter() { if (field.value.trim()) set(field.value.trim()); else { field.placeholder = "a guess first"; field.focus(); } }
    lock.addEventListener("click", enter);
    field.addEventListener("keydown", function (event) {
      if (event.key !== "Enter") return;
      event.preventDefault(); /* or the button that gets the focus is pressed by the same key */
      enter();
    });
    again.addEventListener("click", function () { field.value = text; set(null); });
    skip.addEventListener("click", function () { answer.show(); show(); field.focus(); });
    if (answer) {
      if (text === null) answer.hide(); else answer.show();
      answer.watch(show);
    }
    show();
  });
})();
