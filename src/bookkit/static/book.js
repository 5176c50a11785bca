/* What a page of the book does by itself: colour mode, side bar, menus, code to copy, keyboard access to wide things.
   A classic script without dependencies; every part works from a file and without storage. */
(function () {
  "use strict";
  var root = document.documentElement;
  var all = function (selector, within) { return Array.prototype.slice.call((within || document).querySelectorAll(selector)); };

  /* Colour mode: what the system says, then the other one, then back. */
  var dark = matchMedia("(prefers-color-scheme: dark)");
  var onPaper = false;
  function setMode(mode) {
    var theme = onPaper ? "light" : mode === "auto" ? (dark.matches ? "dark" : "light") : mode;
    root.dataset.mode = mode;
    all(".theme-button").forEach(function (button) {
      var name = "Colour mode: " + (mode === "auto" ? "as the system" : mode);
      button.setAttribute("aria-label", name);
      button.title = name;
    });
    if (root.dataset.theme !== theme) {
      root.dataset.theme = theme;
      document.dispatchEvent(new CustomEvent("themechange", { detail: theme }));
    }
  }
  all(".theme-button").forEach(function (button) {
    button.addEventListener("click", function () {
      var order = dark.matches ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
      var mode = order[(order.indexOf(root.dataset.mode) + 1) % 3];
      try { localStorage.setItem("mode", mode); } catch (refused) { /* then the choice lasts for this page */ }
      setMode(mode);
    });
  });
  dark.addEventListener("change", function () { setMode(root.dataset.mode || "auto"); });
  setMode(root.dataset.mode || "auto");

  /* Paper is light, whatever the screen was: colours of code that are made for the dark cannot be read on it. And nobody can
     unfold paper: what is folded is opened for it. */
  var unfolded = [];
  function turn(paper) {
    onPaper = paper;
    setMode(root.dataset.mode || "auto");
    unfolded.forEach(function (part) { part.open = false; });
    unfolded = paper ? all(".bd-article details:not([open], .explorer *)") : [];
    unfolded.forEach(function (part) { part.open = true; });
  }
  matchMedia("print").addEventListener("change", function (event) { turn(event.matches); });
  addEventListener("beforeprint", function () { turn(true); });
  addEventListener("afterprint", function () { turn(false); });

  /* Side bar: a column that can be folded where there is room, a drawer where there is none. */
  var sidebar = document.getElementById("pst-primary-sidebar");
  var drawer = document.getElementById("pst-primary-sidebar-modal");
  var wide = matchMedia("(min-width: 992px)");
  function fill(from, to) { while (from.firstChild) to.appendChild(from.firstChild); }
  function openDrawer() { fill(sidebar, drawer); drawer.className = "book-drawer"; drawer.showModal(); }
  if (sidebar && drawer) {
    drawer.setAttribute("aria-label", "Contents of the book");
    drawer.addEventListener("close", function () { fill(drawer, sidebar); });
    drawer.addEventListener("click", function (event) {
      if (event.target === drawer || event.target.closest("a")) drawer.close();
    });
    wide.addEventListener("change", function () { if (drawer.open) drawer.close(); });
    all(".sidebar-open").forEach(function (button) {
      button.addEventListener("click", function () {
        if (wide.matches) sidebar.classList.toggle("folded"); else openDrawer();
      });
    });
    var current = sidebar.querySelector("a.current") || sidebar.querySelector(".active > a");
    if (current && current.offsetTop > sidebar.clientHeight * 0.8) sidebar.scrollTop = current.offsetTop - sidebar.clientHeight / 3;
  }

  /* Search: Control K, or the button, go to the search field. */
  function search() {
    var field = document.querySelector(".book-search input");
    if (!field) return;
    if (!wide.matches && sidebar && sidebar.contains(field)) openDrawer();
    if (sidebar) sidebar.classList.remove("folded");
    field.focus();
    field.select();
  }
  all(".search-open").forEach(function (button) { button.addEventListener("click", search); });
  document.addEventListener("keydown", function (event) {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      search();
    }
  });

  /* Menus close when one turns to something else. */
  document.addEventListener("click", function (event) {
    all("details.header-menu[open]").forEach(function (menu) { if (!menu.contains(event.target)) menu.open = false; });
  });
  document.addEventListener("keydown", function (event) {
    if (event.key !== "Escape") return;
    all("details.header-menu[open]").forEach(function (menu) { menu.open = false; menu.querySelector("summary").focus(); });
  });

  /* The section being read is marked in the contents. */
  var entries = {};
  all(".bd-docs-nav li li > a[href^='#']").forEach(function (link) {
    var section = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (section) entries[section.id] = link;
  });
  var sections = Object.keys(entries);
  if (sections.length && "IntersectionObserver" in window) {
    var visible = {};
    var observer = new IntersectionObserver(function (changes) {
      changes.forEach(function (change) { visible[change.target.id] = change.isIntersecting; });
      var reading = sections.filter(function (id) { return visible[id]; })[0];
      if (!reading) return;
      sections.forEach(function (id) {
        if (id === reading) entries[id].setAttribute("aria-current", "true"); else entries[id].removeAttribute("aria-current");
      });
    }, { rootMargin: "-15% 0px -70% 0px" });
    sections.forEach(function (id) { observer.observe(document.getElementById(id)); });
  }

  /* Names in code are the same in all languages. */
  all("code").forEach(function (name) { name.translate = false; });

  /* Where a number is from: the page has each input once, and a call the numbers of its inputs. */
  var inputs = document.getElementById("inputs");
  if (inputs) {
    inputs = JSON.parse(inputs.textContent);
    all("[data-call]").forEach(function (number) {
      number.title = "computed: " + number.dataset.call.replace(/\((.+?)\)/, function (whole, numbers) {
        return "(" + numbers.split(" ").map(function (one) { return inputs[one]; }).join(", ") + ")";
      });
    });
  }

  /* What scrolls sideways can be reached and scrolled with the keyboard. */
  function reachable() {
    var boxes = all("pre, .math-scroll, .pst-scrollable-table-container, .cell_output > .output")
      .filter(function (box) { return !box.checkVisibility || box.checkVisibility(); }); // to measure a fold lays it out by itself
    var wider = boxes.map(function (box) { return box.scrollWidth > box.clientWidth; }); // one layout: nothing is written between
    boxes.forEach(function (box, k) { if (wider[k]) box.tabIndex = 0; else box.removeAttribute("tabindex"); });
  }

  /* Code to copy, without prompts and without what is not code. */
  function addCopyButtons() {
    if (!navigator.clipboard && !document.execCommand) return;
    all("div.highlight").forEach(function (block) {
      var code = block.querySelector("pre");
      if (!code || block.closest(".cell_output")) return;
      var button = document.createElement("button");
      button.type = "button";
      button.className = "copy-button";
      button.setAttribute("aria-label", "Copy the code");
      button.title = "Copy";
      button.addEventListener("click", function () {
        var text = code.innerText;
        var done = function () {
          button.classList.add("done");
          button.setAttribute("aria-label", "Copied");
          setTimeout(function () { button.classList.remove("done"); button.setAttribute("aria-label", "Copy the code"); }, 1500);
        };
        if (navigator.clipboard) { navigator.clipboard.writeText(text).then(done, function () {}); return; }
        var field = document.createElement("textarea"); /* the clipboard is not offered on plain http */
        field.value = text;
        document.body.appendChild(field);
        field.select();
        if (document.execCommand("copy")) done();
        field.remove();
      });
      block.appendChild(button);
    });
  }

  /* A thing on the whole screen: present.js and its sheet come when somebody asks. */
  var own = document.currentScript.src;
  function present(asked) {
    if (window.BOOK_PRESENT) { window.BOOK_PRESENT(asked); return; }
    var sheet = document.createElement("link"), script = document.createElement("script");
    sheet.rel = "stylesheet";
    sheet.href = own.replace(/book\.js.*/, "present.css");
    script.src = own.replace(/book\.js.*/, "present.js");
    sheet.onload = function () { document.head.appendChild(script); };
    script.onload = function () { window.BOOK_PRESENT(asked); };
    document.head.appendChild(sheet);
  }
  all(".present-open").forEach(function (button) { button.addEventListener("click", function () { present(button); }); });
  var under = null;
  document.addEventListener("pointerover", function (event) { under = event.target; });
  document.addEventListener("keydown", function (event) {
    if (event.key !== "f" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not([type=range]), textarea, select, [contenteditable]")) return;
    var focused = event.target.closest(".bd-article .explorer, .bd-article figure, .bd-article .figure, .bd-article .box");
    if (!document.documentElement.classList.contains("presenting") && (focused || under)) { event.preventDefault(); present(focused || under); }
  });
  var asked = new URLSearchParams(location.search).get("present");
  if (asked !== null) present(asked);

  function later() { addCopyButtons(); reachable(); }
  if ("requestIdleCallback" in window) requestIdleCallback(later, { timeout: 500 }); else setTimeout(later, 200);
  addEventListener("resize", function () { clearTimeout(reachable.timer); reachable.timer = setTimeout(reachable, 200); });
  document.addEventListener("toggle", reachable, true); // in a fold that is closed nothing has a width
  if (document.fonts) document.fonts.ready.then(reachable);
})();
