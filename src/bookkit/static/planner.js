/* The card that searches all legal layouts (bookkit/layouts.py writes it). The search goes on between frames; a click on a row hands
   the layout to the explorer above. A config.json is read here, as coursekit/planner/model_config.py does, and a file of DeepSpeed or
   torchtitan, as coursekit/planner/configurations.py does. Classic script. */
(function () {
  "use strict";

  const REST_MS = 400, format = BOOK.format, { write } = BOOK.svg;

  function Refusal(message) { this.message = message; }

  // --- a config.json

  function several(fields) { return typeof fields === "string" ? [fields] : fields; }

  function parsed(text, name) {
    let config;
    try { config = JSON.parse(text.replace(/^\ufeff/, "")); } catch (error) {
      throw new Refusal(name + " is not JSON: it is not the config.json of a model on Hugging Face.");
    }
    if (config === null || typeof config !== "object" || Array.isArray(config)) {
      throw new Refusal(name + " holds no object with names: it is not the config.json of a model on Hugging Face.");
    }
    return config;
  }

  /* What is in a field: nothing where Python's bool() is False. */
  function holds(value) { return value !== null && typeof value === "object" ? Object.keys(value).length : value; }

  /* The quantities of a model, or one sentence: read_config. */
  BOOK.readConfig = function (text, known, name) {
    const config = parsed(text, name), kind = config.model_type, json = JSON.stringify;
    const refuse = words => { throw new Refusal(words); };
    if (typeof kind !== "string") refuse(name + " has no model_type: it is not the config.json of a model on Hugging Face; take the file of that name beside the model's weights.");
    const architecture = Object.prototype.hasOwnProperty.call(known.architectures, kind) ? known.architectures[kind] : null;
    if (!architecture) {
      refuse(name + ": model_type '" + kind + "' is an architecture that the formulas do not know" +
        ("text_config" in config ? ", a model of several parts: give its text_config" : "") + "; there are " + Object.keys(known.architectures).join(", ") + ".");
    }
    const names = known.names[architecture.names], read = new Set(Object.values(names).flatMap(several));
    [].concat(holds(config.architectures) ? config.architectures : []).forEach(made => {
      if (typeof made !== "string" || !known.causal.some(end => made.endsWith(end))) {
        refuse(name + ": architectures = " + json(made) + ": the formulas count a model with a head over the vocabulary, such as one that ends in ForCausalLM.");
      }
    });
    if (holds(config.quantization_config)) {
      refuse(name + " has a quantization_config: the formulas count weights in the precision of the recipe; delete the field to ask about training in that precision.");
    }
    Object.entries(config).forEach(([field, value]) => {
      const again = config[known.said_again[field]] === value;
      if (field.includes("expert") && holds(value) && !read.has(field) && !again) refuse(name + ": " + field + " = " + json(value) + ": the formulas know " + kind + " without it.");
    });
    Object.entries(architecture.only).forEach(([field, wanted]) => {
      const found = field in config ? config[field] : wanted;
      if (found !== null && json(found) !== json(wanted)) refuse(name + ": " + field + " = " + json(found) + ": the formulas know " + kind + " with " + json(wanted) + " alone.");
    });
    const all = Object.assign(Object.create(null), Object.fromEntries(Object.entries(architecture.older).map(([old, now]) => [now, config[old]])), config);
    const number = (field, optional) => {
      const value = all[field];
      if ((value === null || value === undefined) && !optional) refuse(name + " has no " + field + ", which " + kind + " needs: it is not a complete config.json.");
      if (value !== null && value !== undefined && !Number.isInteger(value)) refuse(name + ": " + field + " = " + json(value) + " is not a whole number.");
      return value;
    };
    const sizes = {};
    Object.entries(names).forEach(([quantity, fields]) => {
      const values = several(fields).map(field => number(field, known.optional.includes(quantity)));
      if (values.every(value => value !== null && value !== undefined)) sizes[quantity] = values.reduce((product, value) => product * value, 1);
    });
    Object.entries(architecture.flags).forEach(([quantity, field]) => { sizes[quantity] = holds(all[field]) ? 1 : 0; });
    if (!("key_value_heads" in sizes)) sizes.key_value_heads = sizes.heads;
    if (!("head_size" in sizes)) sizes.head_size = architecture.head_size;
    if (!("feed_forward" in sizes)) {
      if (!Object.values(names).includes("n_inner")) refuse(name + " has no " + names.feed_forward + ".");
      sizes.feed_forward = 4 * sizes.hidden;
    }
    if (architecture.more_positions) sizes.max_sequence += architecture.more_positions;
    const tied = all.tie_word_embeddings;
    if (![null, undefined, true, false].includes(tied)) refuse(name + ": tie_word_embeddings = " + json(tied) + ": it is true, false or absent.");
    return Object.assign(sizes, architecture.fixed, { tied_head: (tied === null || tied === undefined ? architecture.tied : tied) ? 1 : 0 });
  };

  // --- a tool's file

  const OPEN = ["model", "family", "every"], TEXTS = ["flavor"]; // as in configurations.py

  function plain(value) { const text = (typeof value === "object" ? JSON.stringify(value) : String(value)).toLowerCase(); return { no: "false", yes: "true" }[text] || text; }
  function saysNothing(value) { return value === null || value === "" || value === "auto" || (typeof value === "object" && !Object.keys(value).length); }
  function numeric(value) { return typeof value === "boolean" ? Number(value) : typeof value === "object" || !isFinite(Number(value)) ? value : Number(value); }
  function shownAs(value) { return ["boolean", "object"].includes(typeof value) ? JSON.stringify(value) : String(value); }

  /* The sections and settings of TOML, whose values are one line each. */
  function toml(text) {
    const tree = {};
    let place = tree;
    text.split(/\r?\n/).forEach(line => {
      const bare = line.replace(/("[^"]*"|'[^']*')|#.*/g, (all, quoted) => quoted || "").trim(), section = /^\[([\w.-]+)\]$/.exec(bare);
      if (!bare) return;
      if (section) {
        place = section[1].split(".").reduce((found, name) => (found[name] = found[name] || {}), tree);
        return;
      }
      const [, name, value] = /^([\w-]+)\s*=\s*(.+)$/.exec(bare);
      place[name] = JSON.parse(value.replace(/'([^']*)'/g, '"$1"').replace(/(\d)_(?=\d)/g, "$1").replace(/,\s*\]/, "]"));
    });
    return tree;
  }

  function flat(tree, before) {
    return Object.entries(tree).flatMap(([name, value]) =>
      (value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, before + name + ".") : [[before + name, value]]));
  }

  function meets(setting, value) {
    const wanted = setting.values.split(" ");
    if (saysNothing(value) || (value === false && !wanted.includes("false"))) return false;
    const several = Array.isArray(value) ? value : String(value).split(/\s+/);
    return wanted.some(one => several.some(there => (one[0] === ">" ? numeric(there) > Number(one.slice(1)) : one === "*" || plain(one) === plain(there))));
  }

  /* What a file says: the tool, and quantity -> value as the table names them; or one sentence: _read of configurations.py. */
  BOOK.readConfiguration = function (text, tools) {
    const refuse = words => { throw new Refusal(words); }, json = text.trimStart().startsWith("{"), raw = {}, where = {};
    let tree;
    try { tree = json ? JSON.parse(text) : toml(text); } catch (error) { refuse("The file cannot be parsed: it is neither JSON nor a torchtitan's TOML."); }
    if ("model_type" in tree && "hidden_size" in tree) refuse("The file is a model's config.json: choose “a config.json ...” under Model.");
    const tool = tools.find(one => one.json === json && one.signs.some(sign => sign in tree));
    if (!tool) refuse("The file is of none of these tools: " + tools.map(one => one.name).join(", ") + ".");
    flat(tree, "").forEach(([key, value]) => {
      const place = key + " = " + shownAs(value), named = tool.settings.filter(one => one.keys.includes(key));
      const like = one => one.keys.some(known => new RegExp("^" + known.replace(/[.]/g, "\\.").replace(/[*]/g, ".*") + "$").test(key));
      const settings = named.length ? named : tool.settings.filter(like);
      if (!settings.length) refuse(place + ": " + tool.name + " has no such setting.");
      settings.filter(one => one.quantity === "!" && meets(one, value)).forEach(one => refuse(place + ": " + one.words + "."));
      settings.filter(one => !/^[!?-]|^bucket/.test(one.quantity)).forEach(one => {
        const name = one.quantity.replace("<", ""), pair = one.pairs.find(([, there]) => plain(there) === plain(value)), choices = one.pairs.map(([, there]) => plain(there));
        if (!pair && (saysNothing(value) || OPEN.includes(name) || (plain(value) === "false" && choices.includes("true")))) return;
        const whole = Number.isInteger(numeric(value)) && numeric(value) >= -1;
        if (!pair && (choices.length || (!whole && !TEXTS.includes(name)))) {
          refuse(place + ": " + (choices.length ? "there are " + [...new Set(choices)].join(", ") : "it must be a whole number") + ".");
        }
        const ours = pair ? pair[0] : numeric(value);
        if (name in raw && raw[name] !== ours) refuse(place + " contradicts " + where[name] + ".");
        where[name] = where[name] || place;
        raw[name] = ours;
      });
    });
    return { tool: tool.name, raw: raw, silent: tool.silent };
  };

  /* The knobs of the explorer for what a file says, on so many GPUs. */
  BOOK.layoutOf = function ({ raw, silent }, gpus, sequence) {
    const said = Object.assign({}, silent, raw), refuse = words => { throw new Refusal(words + " In a shell, fits --from reads the file."); };
    const t = said.tensor_parallel || 1, p = said.pipeline_parallel || 1, c = said.context_parallel || 1, copy = t * p * c;
    const all = said.shards > 0 ? said.shards * (said.replicas || 1) * copy : gpus, ranks = all / copy;
    if (all % copy) refuse(all + " GPUs are no multiple of " + copy + ", the degrees of the file.");
    if (said.recompute_policy === 2 || said.schedule === 4) refuse("The explorer knows no operators that are chosen, and no interleaved stages.");
    const b = said.local ? (p > 1 ? said.pipeline_microbatch || 1 : said.local) : said.microbatch || 1;
    const batch = said.batch > 0 ? said.batch : said.local ? said.local * ranks : b * ranks * (said.accumulation_steps || 1), steps = batch / (b * ranks);
    if (steps % 1) refuse(batch + " sequences in a step are not microbatches of " + b + " on " + ranks + " ranks.");
    const cut = t > 1 && "sequence_parallel" in said ? said.sequence_parallel : 1;
    return { data_parallel: all / (t * p), tensor_parallel: t, pipeline_parallel: p, context_parallel: c, zero_stage: said.shards === 1 && c === 1 ? 0 : said.zero_stage,
      microbatch: b, accumulation_steps: steps, sequence: (said.sequence || sequence) / c, recompute_policy: said.recompute_policy || 0, offload: said.offload || 0,
      sequence_parallel: cut, regather: cut, pipeline_rank: 0, shorter_ends: p > 1 ? said.shorter_ends || 0 : 0, stages_per_rank: 1 };
  };

  // --- the card

  BOOK.planner = function (id, name) {
    const root = document.getElementById(id), find = selector => root.querySelector(selector), known = JSON.parse(find("script[type='application/json']").textContent);
    const above = document.getElementById("explorer-" + name), hands = above.hands, facts = hands.spec.layouts, start = hands.spec.values;
    const layouts = BOOK.layouts(name, hands.presets, facts);
    const asked = Object.fromEntries(Array.from(root.querySelectorAll("[data-asked]"), field => [field.dataset.asked, field]));
    const config = find(".planner-config"), pasted = find("textarea"), error = find(".explorer-error"), sentence = find(".explorer-sentence");
    const table = find(".planner-best"), near = find(".planner-nearest"), status = find(".explorer-status");
    const CONFIG = asked.model.options[asked.model.options.length - 1].value, first = asked.model.value;
    let running = 0, resting, shown = null; // the plan on show; null where Python wrote it
    root.querySelectorAll("input, select, textarea").forEach(field => { field.autocomplete = "off"; });

    function count(field) {
      const label = root.querySelector("label[for='" + field.id + "']").textContent, value = BOOK.parse(field.value, "exact");
      if (!Number.isInteger(value) || value < 1 || value > 1e6) throw new Refusal("“" + label + "” = " + field.value + ": it must be a whole number from 1 to 1,000,000.");
      return value;
    }

    function sizesOf(model) {
      const family = Object.fromEntries(known.family.map((quantity, k) => [quantity, known.models[model][k]]));
      return family;
    }

    /* What is asked, as layouts.js takes it. */
    function question() {
      const model = asked.model.value, gpu = asked.gpu.value, chosen = hands.chosen();
      const usual = Object.fromEntries(known.family.map((quantity, k) => [quantity, known.usual[k]]).filter(([, value]) => value !== null));
      if (model === CONFIG && !pasted.value.trim()) throw new Refusal("Paste a config.json, or choose the file.");
      const sizes = model === CONFIG ? Object.assign(usual, BOOK.readConfig(pasted.value, known, "the config.json")) : sizesOf(model);
      const gpus = count(asked.gpus), batch = count(asked.batch), typed = count(asked.sequence), recipes = hands.presets.recipe;
      const recipe = facts.without_bf16.includes(gpu) && chosen.recipe.startsWith("bf16") ? known.fp16 : chosen.recipe;
      const values = Object.assign({}, start, sizes, recipes[recipe], hands.presets.kernels[chosen.kernels], hands.presets.gpu[gpu],
        sizes.experts ? known.speed_of_experts[gpu] : {});
      const sequence = sizes.learned_positions ? Math.min(typed, sizes.max_sequence) : typed; // as long as its table of positions
      if (sequence < typed) asked.sequence.value = format(sequence, "exact");
      try { // what no layout can mend
        BOOK.models[name](Object.assign({}, values, { data_parallel: 1, tensor_parallel: 1, pipeline_parallel: 1, pipeline_rank: 0, sequence: sequence, microbatch: 1, zero_stage: 0, accumulation_steps: 1 }));
      } catch (refused) {
        if (!(refused instanceof BOOK.InvalidQuantity)) throw refused;
        throw new Refusal((model === CONFIG ? "the config.json: " : "") + refused.message);
      }
      return { model, gpu, gpus, batch, sequence, cut: sequence < typed, recipe, kernels: chosen.kernels, values };
    }

    // -- the answer

    /* The texts of a row: cells of planner_page.py. */
    function cells({ layout, stages, bytes, seconds, tokens }) {
      const t = layout.tensor_parallel, p = layout.pipeline_parallel, v = layout.stages_per_rank, c = layout.context_parallel, e = layout.expert_parallel;
      return [
        t + (t > 1 && !layout.sequence_parallel ? ", whole tokens" : ""),
        v > 1 ? p + " × " + v + " stages" : p + (layout.shorter_ends ? ", short ends" : ""),
        layout.gpus / (t * p * c) + (c > 1 ? " × " + c + " that share" : "") + (e > 1 ? ", experts over " + e : ""),
        stages.join(" or "), layout.microbatch + " × " + layout.accumulation_steps, facts.again[layout.recompute_policy],
        format(bytes, "decimal bytes"), format(seconds, "short duration"), format(tokens, "number")
      ];
    }

    function bindsWords(binds) {
      if (binds.memory) {
        const turned = BOOK.inWords(binds.memory, { words: Object.assign({}, facts.words, facts.more_words), again: facts.again });
        return "Limited by memory: " + turned + " would take " + format(binds.seconds, "short duration") + " and " + (binds.missing / 1e9).toFixed(2) + " GB more than there is";
      }
      return "Limited by " + (binds.part ? facts.parts[binds.part] + ", " + Math.round(100 * binds.share) + "% of the step" : "nothing but the GPU's own work");
    }

    function take(one, question) {
      const menus = { gpu: one.layout.gpu, recipe: one.layout.recipe, kernels: one.layout.kernels };
      if (question.model in hands.presets.model) menus.model = question.model;
      hands.set(layouts.knobs(one.layout, one.fullest), menus);
      above.scrollIntoView({ block: "nearest" });
    }

    function showPlan(plan, question, took) {
      const bodies = plan.best.map((one, place) => {
        const body = document.createElement("tbody"), row = body.insertRow(), heads = table.tHead.rows[0].cells;
        cells(one).forEach((text, k) => {
          const cell = row.insertCell();
          cell.dataset.head = heads[k].textContent;
          cell.textContent = text;
        });
        const under = body.insertRow(), cell = under.insertCell();
        under.className = "planner-binds";
        cell.colSpan = heads.length;
        cell.textContent = bindsWords(one.binds);
        return body;
      });
      Array.from(table.tBodies).forEach(body => body.remove());
      table.append(...bodies);
      table.hidden = !plan.best.length;
      near.hidden = !!plan.best.length;
      if (!plan.best.length) BOOK.nearestButtons(near, plan.nearest, facts, one => take(one, question));
      write(sentence, format(plan.legal, "exact") + " legal layouts, " + format(plan.fitting, "exact") + " fit. " +
        (plan.best.length ? "The fastest, one for each pair of t and p; with " : "With ") + question.recipe + ", " + question.kernels + "." +
        (question.cut ? " The model has a table of " + format(question.sequence, "exact") + " positions, so its sequences are no longer than that." : ""));
      const speed = question.values.experts ? known.experts : known.speed_of[question.gpu], family = question.gpu.split(" SXM")[0];
      const adapters = facts.adapted.includes(question.recipe) ? facts.no_adapters : "";
      write(find(".planner-bytes"), known.compared[question.kernels] + adapters);
      write(find(".planner-seconds"), known.speeds[speed] + (known.measured[speed].includes(family + "s") ? "" : ", none of them on the " + family) + adapters);
      write(find(".planner-command"), commandOf(question));
      shown = { plan, question };
      addButtons();
      root.dataset.took = took.toFixed(0);
      status.textContent = sentence.textContent;
    }

    /* The question from a shell: plan_command of planner_page.py. */
    function commandOf(question) {
      const texts = { model: question.model === CONFIG ? "config.json" : question.model, gpu: question.gpu, recipe: question.recipe, kernels: question.kernels };
      const counts = ["gpus", "sequence", "batch"].map(name => "--" + name + " " + question[name]);
      return ["python -m shardlab plan"].concat(["gpu", "recipe", "kernels", "model"].map(name => "--" + name + ' "' + texts[name] + '"'), counts).join(" ");
    }

    /* The first cell of a row is a button; all of the row takes a click. */
    function addButtons() {
      Array.from(table.tBodies).forEach((body, place) => {
        const cell = body.rows[0].cells[0], button = document.createElement("button");
        button.type = "button";
        button.textContent = cell.textContent;
        button.setAttribute("aria-label", "Show layout " + (place + 1) + " above: t = " + cell.textContent);
        cell.replaceChildren(button);
        body.addEventListener("click", () => choose(place));
      });
    }

    function choose(place) {
      if (shown) take(shown.plan.best[place], shown.question);
      else search(() => take(shown.plan.best[place], shown.question));
    }

    const LABELS = [["batch = ", "“sequences in a step” = "], [" on gpus = ", " on “GPUs” = "],
      ["microbatch x data_parallel divides the batch", "copies times sequences in a microbatch divide the sequences in a step"]];

    function refuse(message) {
      write(error, LABELS.reduce((text, [name, label]) => text.replace(name, label), message));
      if (message) table.hidden = near.hidden = true; // they answer another question, as the command does
      find(".planner-command").parentElement.hidden = !!message;
      error.hidden = !message;
      root.classList.toggle("stale", !!message);
    }

    function search(then) {
      const turn = ++running, begun = performance.now();
      let asking;
      try { asking = question(); } catch (refused) {
        if (!(refused instanceof Refusal)) throw refused;
        refuse(refused.message);
        return;
      }
      root.classList.add("searching");
      BOOK.inSlices(layouts.plan(asking), () => turn === running, plan => {
        root.classList.remove("searching");
        refuse("");
        showPlan(plan, asking, performance.now() - begun);
        if (typeof then === "function") then();
      }, refused => {
        if (!(refused instanceof BOOK.InvalidQuantity)) throw refused;
        root.classList.remove("searching");
        refuse(refused.message);
      });
    }

    function later() { clearTimeout(resting); resting = setTimeout(search, REST_MS); }

    Object.values(asked).forEach(field => field.addEventListener(field.localName === "select" ? "change" : "input", () => {
      config.hidden = asked.model.value !== CONFIG;
      later();
    }));
    pasted.addEventListener("input", later);
    find("[type=file]").addEventListener("change", event => {
      const file = event.target.files[0];
      if (file) file.text().then(text => { pasted.value = text; search(); });
    });
    find(".planner-tool input").addEventListener("change", event => {
      const file = event.target.files[0], read = find(".planner-read");
      if (!file) return;
      file.text().then(text => {
        const found = BOOK.readConfiguration(text, known.tools), changes = BOOK.layoutOf(found, count(asked.gpus), count(asked.sequence));
        hands.set(changes, {});
        above.scrollIntoView({ block: "nearest" });
        const said = Object.entries(found.raw).map(([quantity, value]) => quantity.replace(/_/g, " ") + " " + value).join(", ");
        write(read, "Read as " + found.tool + ": " + said + ". The explorer above shows this layout with its own model, recipe and kernels.");
      }).catch(refused => {
        if (!(refused instanceof Refusal)) throw refused;
        write(read, refused.message);
      });
    });
    root.classList.add("live");
    addButtons();
  };
})();
