/* Draws the plotly figures stored in a notebook when they come near the screen, in the colours of the page. plotly.js
   is 4.7 MB: it is fetched, from the book itself, only when the first figure is near. */
(function () {
  "use strict";
  var address = document.currentScript.dataset.plotly;
  var figures = Array.prototype.slice.call(document.querySelectorAll(".plotly-figure"));
  var loading = null;

  function plotly() {
    loading = loading || new Promise(function (resolve, reject) {
      var script = document.createElement("script");
      script.src = address;
      script.onload = function () { resolve(window.Plotly); };
      script.onerror = function () { reject(new Error("plotly.min.js is missing")); };
      document.head.appendChild(script);
    });
    return loading;
  }

  /* A title that is wider than the figure goes on in a second line. */
  function wrapped(text, letters) {
    if (!text || /<br/i.test(text)) return text;
    return text.split(" ").reduce(function (lines, word) {
      var last = lines[lines.length - 1];
      if (last && (last + " " + word).length <= letters) lines[lines.length - 1] = last + " " + word; else lines.push(word);
      return lines;
    }, []).join("<br>");
  }

  /* The page's own ink, grid and paper, so that a figure follows the colour mode. */
  function dressed(layout, width) {
    var style = getComputedStyle(document.documentElement);
    var colour = function (name) { return style.getPropertyValue(name).trim(); };
    var ink = colour("--ink"), grid = colour("--line"), page = colour("--page");
    var result = JSON.parse(JSON.stringify(layout || {}));
    delete result.width;
    result.autosize = true;
    result.paper_bgcolor = result.plot_bgcolor = "rgba(0,0,0,0)";
    result.font = Object.assign({ size: 14 }, result.font, { color: ink, family: colour("--font-ui") });
    var title = typeof result.title === "string" ? { text: result.title } : result.title || {};
    title.text = wrapped(title.text, Math.floor(width / 8));
    result.title = Object.assign(title, { x: 0, xref: title.xref || "paper", xanchor: "left", font: { size: 17 } });
    var lines = title.text ? title.text.split(/<br/i).length : 0;
    if (!result.colorway) result.colorway = ["parameters", "gradients", "activations", "optimizer", "temporaries", "gathered"]
      .map(function (name) { return colour("--memory-" + name); });
    result.hoverlabel = Object.assign({}, result.hoverlabel, { bgcolor: page, bordercolor: grid, font: { color: ink } });
    Object.keys(result).concat(["xaxis", "yaxis"]).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) result[key] = Object.assign({ automargin: true, zerolinecolor: grid, showgrid: key[0] === "y" }, result[key],
        { gridcolor: grid, linecolor: grid, tickcolor: grid });
    });
    if (width < 520) {
      result.margin = Object.assign({}, result.margin, { l: 8, r: 8, t: 24 + 24 * lines });
      if (result.height) result.height *= 1.1; // a title of two lines takes height from the bars, and letters from them
      var below = Math.min(-0.2, (result.legend || {}).y || 0); // of the bars' height: a low figure has its axis' words above
      result.legend = Object.assign({}, result.legend, { orientation: "h", x: 0, y: below, yanchor: "top", xanchor: "left" });
    } else {
      result.margin = Object.assign({ l: 60, r: 20, t: 24 + 24 * lines, b: 50 }, result.margin);
    }
    return result;
  }

  /* Plotly makes letters as small as the bar that they are in. A figure with letters below 9.8 px is drawn wider, and scrolls. */
  var WIDER = ["40rem", "80rem"];
  function readable(place) {
    return Array.prototype.every.call(place.querySelectorAll("text"), function (text) {
      var scale = text.getScreenCTM(), style = getComputedStyle(text);
      return !scale || !text.textContent.trim() || style.visibility === "hidden"
        || Math.hypot(scale.a, scale.b) * parseFloat(style.fontSize) >= 9.8;
    });
  }

  function draw(figure, widths) {
    return plotly().then(function (Plotly) {
      var stored = JSON.parse(figure.querySelector("script").textContent);
      var place = figure.querySelector(".plotly-place");
      if (!place) { place = document.createElement("div"); place.className = "plotly-place"; figure.appendChild(place); }
      var config = Object.assign({ displaylogo: false, displayModeBar: false }, stored.config);
      delete config.plotlyServerURL;
      place.style.minWidth = "";
      return widths.reduce(function (drawing, width) {
        return drawing.then(function () {
          if (readable(place)) return null;
          place.style.minWidth = width;
          return Plotly.Plots.resize(place);
        });
      }, Plotly.react(place, stored.data, dressed(stored.layout, place.clientWidth), config));
    }).then(function () {
      figure.classList.add("drawn");
      if (figure.scrollWidth > figure.clientWidth) figure.tabIndex = 0; else figure.removeAttribute("tabindex");
    }).catch(function (problem) { figure.classList.add("failed"); console.error(problem); });
  }

  function again() {
    figures.forEach(function (figure) { if (figure.classList.contains("drawn")) draw(figure, WIDER); });
  }

  if (!("IntersectionObserver" in window)) { figures.forEach(function (figure) { draw(figure, WIDER); }); return; }
  var observer = new IntersectionObserver(function (changes) {
    changes.forEach(function (change) { if (change.isIntersecting) { observer.unobserve(change.target); draw(change.target, WIDER); } });
  }, { rootMargin: "400px" });
  figures.forEach(function (figure) { observer.observe(figure); });
  document.addEventListener("themechange", again);
  var width = innerWidth, timer = null;
  addEventListener("resize", function () { // not when a phone hides its bar of addresses
    if (innerWidth !== width) { width = innerWidth; clearTimeout(timer); timer = setTimeout(again, 100); }
  });
  addEventListener("beforeprint", function () { figures.forEach(function (figure) { draw(figure, []); }); });
  addEventListener("afterprint", again);
})();
