/* The search page: looks in the text of all pages (search-text.js). Hits in titles come first, then those in headings, then
   those in the text; of each, the line around it is shown. Works from a file. */
(function () {
  "use strict";

  /* Names of one thing: who asks for one of them finds the others. */
  var NAMES = [
    ["mixture of experts", "MoE", "expert parallelism"],
    ["sending less", "gradient compression", "communication hook", "comm hook"],
    ["out of memory", "OOM", "OutOfMemoryError"],
    ["bubble", "idle time", "idle", "pipeline bubble"],
    ["ZeRO stage 3", "ZeRO-3", "FSDP", "FSDP2", "fully sharded data parallel", "fully_shard"],
    ["data parallelism", "data parallel", "DDP", "DistributedDataParallel"],
    ["activation checkpointing", "gradient checkpointing", "recompute", "recomputation", "rematerialization"],
    ["gradient accumulation", "accumulation steps", "accumulation", "accumulate gradients", "no_sync"],
    ["tensor parallelism", "tensor parallel", "tensor model parallelism"],
    ["pipeline parallelism", "pipeline parallel", "pipelines"],
    ["sequence parallelism", "sequence parallel"],
    ["context parallelism", "context parallel", "ring attention"],
    ["all-reduce", "allreduce"],
    ["all-gather", "allgather"],
    ["reduce-scatter", "reducescatter"],
    ["mixed precision", "AMP", "autocast"],
    ["bf16", "bfloat16"],
    ["fp16", "float16", "half precision"],
    ["fp32", "float32", "single precision"],
    ["fp8", "float8"],
    ["loss scaling", "loss scale", "GradScaler"],
    ["master copy", "master weights", "master parameters"],
    ["flash attention", "FlashAttention"],
    ["model FLOPs utilisation", "MFU", "utilisation", "utilization"],
    ["gradient clipping", "clip_grad_norm", "clipping"],
    ["optimizer states", "optimiser states", "moments"],
    ["saving", "sharded checkpoint", "resharding"],
    ["microbatch", "micro batch"],
    ["1F1B", "one forward one backward", "PipeDream"]
  ];
  var SMALL = /^(an?|and|are|as|at|be|by|can|do|does|for|from|how|i|in|is|it|many|much|my|needs?|of|on|or|should|that|the|to|versus|vs|what|when|which|why|with)\.?$/i;
  var MOST_PAGES = 40, MOST_HITS = 3, LINE = 190; // LINE: letters of a line of text

  function words(text) { return text.toLowerCase().match(/[\p{L}\p{N}]+/gu) || []; }
  function stem(word) { return word.replace(/(?<=.{4})(ations?|ings?|ies|ion|ed|es|s|e|y)$/, ""); }
  function key(phrase) { return words(phrase).map(stem).join(" "); }

  /* A phrase, however its words are joined and end. Words of up to three letters have no other endings than an s. */
  function pattern(phrase) {
    return words(phrase).map(function (word) {
      return word.length < 4 ? word + "s?(?![\\p{L}\\p{N}])" : stem(word) + "[\\p{L}\\p{N}]*";
    }).join("[^\\p{L}\\p{N}]{1,3}");
  }
  function anyOf(phrases) { return new RegExp("(?<![\\p{L}\\p{N}])(?:" + phrases.map(pattern).join("|") + ")", "giu"); }

  var groups = Object.create(null);
  NAMES.forEach(function (names) { names.forEach(function (name) { groups[key(name)] = names; }); });

  /* The query as terms, each the names of one thing, the one that was typed first. What is in quotation marks is one term as it
     stands. */
  function termsOf(query) {
    var parts = query.match(/"[^"]+"|[^\s"]+/g) || [], terms = [], k = 0;
    while (k < parts.length) {
      var taken = 1, names = null;
      for (var n = Math.min(5, parts.length - k); n && !names; n--) {
        names = groups[key(parts.slice(k, k + n).join(" "))];
        if (names) taken = n;
      }
      var typed = parts.slice(k, k + taken).join(" ");
      if (names && typed[0] !== '"') terms.push([typed].concat(names.filter(function (name) { return key(name) !== key(typed); })));
      else if (words(typed).length && !SMALL.test(typed)) terms.push([typed]);
      k += taken;
    }
    return terms;
  }

  function has(expression, text) { expression.lastIndex = 0; return expression.test(text); }
  function count(terms, text) { return terms.filter(function (term) { return has(term, text); }).length; }

  /* The hits of a page: {rank, hits}; rank 6 its title is nothing else, 5 the definition of the word, 4 in its title, 3 a heading
     that is nothing else, 2 in a heading, 1 in a section, 0 here and there. */
  function look(page, terms, typed, query) {
    var title = page[2][0][1], inTitle = count(terms, title) === terms.length;
    var met = terms.map(function () { return false; }), hits = [];
    page[2].forEach(function (section, number) {
      var heading = number ? section[1] : "", lines = section[2].split("\n"), best = "", most = 0, times = 0;
      lines.forEach(function (line) {
        var found = count(terms, line);
        times += found === terms.length;
        if (found) found += count(typed, line) / 2 - (line.length < 30) / 4; // what was typed before its other names; sentences
        if (found > most) { most = found; best = line; }
      });
      var text = heading + "\n" + section[2];
      terms.forEach(function (term, k) { met[k] = met[k] || has(term, text) || has(term, title); });
      var seen = count(terms, text);
      if (!seen) return;
      var named = count(terms, heading) === terms.length && section[0].slice(0, 8) !== "formula-"; // that is a name in code
      var rank = named ? (key(heading) !== query ? 2 : section[0].slice(0, 5) === "term-" ? 5 : 3)
        : seen === terms.length ? 1 : 0;
      hits.push({ rank: rank, seen: seen, most: most, times: times, anchor: section[0], heading: heading, line: best || lines[0] });
    });
    if (!inTitle && met.indexOf(false) >= 0) return null;
    hits.sort(function (a, b) { return b.rank - a.rank || b.seen - a.seen || b.most - a.most || b.times - a.times; });
    var ofTitle = !inTitle ? 0 : key(title.replace(/^[\d.]+ /, "")) === query ? 6 : 4;
    var rank = Math.max(ofTitle, hits.length ? hits[0].rank : 0);
    var times = hits.reduce(function (sum, hit) { return sum + hit.times; }, 0);
    return { address: page[0], title: title, kind: page[1], rank: rank, times: times, hits: hits, first: page[2][0][2] };
  }

  function make(name, className, text) {
    var element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  }
  function marked(element, text, all) {
    var end = 0;
    text.replace(all, function (found) {
      var start = arguments[arguments.length - 2];
      element.append(text.slice(end, start), make("mark", "", found));
      end = start + found.length;
    });
    element.append(text.slice(end));
    return element;
  }
  /* A part of a line around its first match, cut between words. */
  function around(line, all) {
    if (line.length <= LINE) return line;
    var at = Math.max(0, line.search(all)), start = at < LINE * 0.6 ? 0 : line.indexOf(" ", at - LINE * 0.4) + 1;
    var end = start + LINE < line.length ? line.lastIndexOf(" ", start + LINE) : line.length;
    return (start ? "… " : "") + line.slice(start, end > at ? end : start + LINE) + (end < line.length ? " …" : "");
  }

  function search(query) {
    var room = document.getElementById("search-results"), names = termsOf(query);
    if (!names.length) {
      room.append(make("p", "search-summary", "There is no word to look for in “" + query + "”."));
      return;
    }
    var asked = key(names.map(function (group) { return group[0]; }).join(" ")); // "what is a rank" asks for "rank"
    var terms = names.map(anyOf), all = anyOf([].concat.apply([], names));
    var typed = names.map(function (group) { return anyOf(group.slice(0, 1)); });
    var pages = BOOK_TEXT.map(function (page) { return look(page, terms, typed, asked); }).filter(Boolean);
    pages.sort(function (a, b) { return b.rank - a.rank || a.kind - b.kind || b.times - a.times; });

    var also = [].concat.apply([], names.map(function (group) { return group.slice(1); }));
    var said = pages.length ? (pages.length === 1 ? "One page" : pages.length + " pages") + " for “" + query + "”."
      : "Nothing found for “" + query + "”. Fewer words, or other ones, may find more.";
    if (also.length) said += " Looked for these names, too: " + also.join(", ") + ".";
    var status = make("p", "search-summary", said);
    status.setAttribute("role", "status");
    var list = make("ul", "search");
    pages.slice(0, MOST_PAGES).forEach(function (page) {
      var item = make("li"), link = make("a", "search-title");
      link.href = page.address;
      item.append(marked(link, page.title, all));
      var shown = page.hits.filter(function (hit) { return hit.rank || page.rank < 1 || hit.seen === terms.length; }).slice(0, MOST_HITS);
      shown.forEach(function (hit) {
        var line = make("p", "context");
        if (hit.heading) {
          var to = make("a");
          to.href = page.address + "#" + hit.anchor;
          line.append(marked(to, hit.heading, all), /[?.!]$/.test(hit.heading) ? " " : ": ");
        }
        line.append(marked(make("span"), around(hit.line, all), all));
        item.append(line);
      });
      if (!shown.length) item.append(make("p", "context", around(page.first.split("\n")[0], /^/)));
      list.append(item);
    });
    room.append(status, list);
  }

  var query = (new URLSearchParams(location.search).get("q") || "").trim();
  document.querySelectorAll("input[name=q]").forEach(function (field) { field.value = query; });
  if (query) search(query);
})();
