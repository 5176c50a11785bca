/* The card that searches all legal layouts (bookkit/layouts.py writes it). The search goes on between frames; a click on a row hands
   the layout to the explorer above. A config.json is read here, as coursekit/planner/model_config.py does. Classic script. */
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
      if (message) table.hidden = near.hidden = true; // they answer another question
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
    root.classList.add("live");
    addButtons();
  };
})();
