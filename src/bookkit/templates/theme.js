(function (root) {
  var mode = "auto";
  try { mode = localStorage.getItem("mode") || mode; }
  catch (refused) { /* private windows, some file:// pages */ }
  root.dataset.mode = mode;
  var dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = mode === "auto" ? (dark ? "dark" : "light") : mode;
})(document.documentElement);
