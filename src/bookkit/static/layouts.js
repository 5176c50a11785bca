/* All legal layouts of a model on GPUs, the fastest that fit, and the nearest that fits: coursekit/planner/search.py and nearest.py in
   the page; a test compares them. Bytes and seconds are those of BOOK.models, generated from the formulas. Classic script. */
(function () {
  "use strict";

  const SLICE_MS = 10, REFUSED = {}, LIMIT = Number.MAX_SAFE_INTEGER;

  function divisors(number) {
    const small = [];
    for (let n = 1; n * n <= number; n++) if (number % n === 0) small.push(n);
    return small.concat(small.filter(n => n * n < number).map(n => number / n).reverse());
  }

  function gcd(a, b) { return b ? gcd(b, a % b) : a; }

  function argmin(values, among) {
    let best = -1;
    for (let k = 0; k < values.length; k++) if (among[k] && (best < 0 || values[k] < values[best])) best = k;
    return best;
  }

  /* The same function as BOOK.models[name], made for thousands of calls: it keeps two results, checks no names, and throws one object
     for all that is refused. */
  function quick(name) {
    const found = { needed: 0, seconds: 0 }, refuse = () => { throw REFUSED; };
    const divided = round => (_, a, b) => (a > LIMIT ? refuse() : round(a / b));
    const whole = (r, quantity, value) => {
      if (value > LIMIT || value < 0) refuse();
      if (quantity === "rank_needed_bytes") found.needed = value;
      return value;
    };
    const finite = (r, quantity, value) => {
      if (!isFinite(value)) refuse();
      if (quantity === "layout_seconds") found.seconds = value;
      return value;
    };
    const model = BOOK.makes[name]((r, q, quantity) => q[quantity], whole, finite, refuse, divided(Math.ceil), divided(Math.floor));
    return values => { model(values); return found; };
  }

  /* Runs a generator in short slices while it is wanted, so that the page stays awake, and hands on its value, or what it throws. */
  BOOK.inSlices = function (steps, wanted, done, refused) {
    (function on() {
      if (!wanted()) return;
      const until = performance.now() + SLICE_MS;
      let next;
      try {
        do next = steps.next(); while (!next.done && performance.now() < until);
      } catch (error) { refused(error); return; }
      if (next.done) done(next.value);
      else setTimeout(on);
    })();
  };

  /* Of an explorer: `presets` are those of its menus by kind, `facts` what bookkit/layouts.py says. A layout is an object with the
     names of RankLayout, and in `values` all quantities that it leaves as they are. */
  BOOK.layouts = function (name, presets, facts) {
    const one = quick(name), CHANGED = Object.keys(facts.words);

    /* How ranks that share a sequence may attend: _mixes of search.py. */
    function mixes(layout, t, c) {
      if (c === 1) return [facts.exchanged];
      return facts.mixes.filter(mix => mix !== facts.exchanged || layout.values.key_value_heads % (t * c) === 0);
    }

    /* The quantities of a layout: RankLayout.given. */
    function given(layout) {
      const t = layout.tensor_parallel, c = layout.context_parallel, cut = t > 1 ? layout.sequence_parallel : 0;
      const values = Object.assign({}, layout.values, {
        tensor_parallel: t, pipeline_parallel: layout.pipeline_parallel, context_parallel: c, expert_parallel: layout.expert_parallel,
        data_parallel: Math.floor(layout.gpus / (t * layout.pipeline_parallel)), zero_stage: layout.zero_stage,
        microbatch: layout.microbatch, accumulation_steps: layout.accumulation_steps, recompute_policy: layout.recompute_policy,
        sequence: Math.floor(layout.sequence / c), sequence_parallel: cut, regather: cut, offload: layout.offload, stages_per_rank: layout.stages_per_rank,
        sequence_tiles: layout.sequence_tiles, checkpoints_on_host: layout.checkpoints_on_host,
        shorter_ends: layout.shorter_ends, pipeline_schedule: layout.stages_per_rank > 1 ? facts.interleaved : facts.one_f_one_b,
        context_mix: layout.context_mix || (layout.values.key_value_heads % (t * c) === 0 ? facts.exchanged : facts.mixes[0])
      });
      return values;
    }

    /* [bytes of the fullest rank, seconds of a step, that rank], or null for what a rule forbids. */
    function solved(layout) {
      const values = given(layout), p = layout.pipeline_parallel, last = p - 1;
      let needed = 0, fullest = 0, seconds = 0;
      try {
        for (const rank of p > 2 ? [0, 1, last] : p > 1 ? [0, 1] : [0]) {
          values.pipeline_rank = rank;
          const found = one(values);
          if (found.needed > needed) { needed = found.needed; fullest = rank; }
          seconds = found.seconds;
        }
      } catch (refused) {
        if (refused !== REFUSED) throw refused;
        return null;
      }
      return [needed, seconds, fullest];
    }

    // --- nearest.py: the nearest that fits

    function check(layout) {
      const { gpus, tensor_parallel: t, pipeline_parallel: p, context_parallel: c } = layout;
      if (facts.without_bf16.includes(layout.gpu) && layout.recipe.startsWith("bf16")) return false;
      if (gpus % (t * p) || (c > 1 && (gpus % (t * p * c) || layout.sequence % (2 * c) || !layout.values.library_kernels))) return false;
      if (c > 1 && layout.context_mix && !mixes(layout, t, c).includes(layout.context_mix)) return false;
      if (p === 1 && (layout.stages_per_rank !== 1 || layout.shorter_ends > 0)) return false;
      return !layout.values.learned_positions || layout.sequence <= layout.values.max_sequence;
    }

    function needed(layout) {
      const found = check(layout) && solved(layout);
      return found && found[0] <= layout.values.gpu_memory_bytes ? found : null;
    }

    function changed(layout, changes) {
      const values = Object.assign({}, layout.values, ...["kernels", "gpu", "recipe"].filter(kind => kind in changes).map(kind => presets[kind][changes[kind]]));
      return Object.assign({}, layout, changes, { values: values });
    }

    function doubles(number, most) {
      const found = [];
      while ((number *= 2) <= most) found.push(number);
      return found;
    }

    function halves(number, least) {
      const found = [];
      while (number > 1 && (number = Math.floor(number / 2)) >= least) found.push(number);
      return found;
    }

    function range(from, to) { return Array.from({ length: Math.max(0, to - from + 1) }, (_, k) => from + k); }

    function fused(layout) { return layout.kernels === facts.kernels[0] ? { kernels: facts.kernels[1] } : {}; }

    function singleChanges(layout) {
      const each = (quantity, values) => values.map(value => ({ [quantity]: value })), MOST = facts.most_gpus;
      return [
        each("zero_stage", range(layout.zero_stage + 1, 3)),
        each("offload", layout.zero_stage && layout.gpus > 1 ? [1] : []),
        each("microbatch", halves(layout.microbatch, 1)),
        [fused(layout)],
        each("recompute_policy", range(layout.recompute_policy + 1, 3)),
        ...(again(layout) ? [each("sequence_tiles", moreTiles(layout)), [{ checkpoints_on_host: 1 }]] : []),
        ...repairs(layout),
        each("tensor_parallel", doubles(layout.tensor_parallel, facts.most_tensor)),
        each("expert_parallel", layout.values.experts ? doubles(layout.expert_parallel, MOST) : []),
        doubles(layout.context_parallel, Math.min(layout.gpus, MOST)).map(c => ({ context_parallel: c,
          context_mix: layout.context_parallel > 1 ? layout.context_mix : 0 })), // 0: the usual one
        each("pipeline_parallel", doubles(layout.pipeline_parallel, facts.most_pipeline)),
        each("gpus", layout.zero_stage ? doubles(layout.gpus, MOST) : []),
        each("sequence", halves(layout.sequence, 128)),
        each("gpu", facts.gpus)
      ];
    }

    /* Changes of one GPU by their cost, each with no more recomputation than it needs. */
    function repairs(layout) {
      if (layout.gpus > 1) return [];
      const recipes = [...facts.small_moments, ...facts.adapted], smaller = recipes.slice(recipes.indexOf(layout.recipe) + 1);
      const there = (layout.offload ? [] : [{ offload: 1 }]).concat(layout.zero_stage < 3 ? [{ zero_stage: 3, offload: 1 }] : []);
      const taken = [facts.small_moments, facts.adapted].map(some => smaller.filter(name => some.includes(name)).map(name => ({ recipe: name })));
      const policies = range(layout.recompute_policy, 3).map(policy => ({ recompute_policy: policy }));
      return [there, ...taken].map(steps => steps.flatMap(step => policies.map(again => Object.assign({}, step, again))));
    }

    function again(layout) { return layout.recompute_policy === 3 && layout.values.library_kernels; }

    function moreTiles(layout) {
      return doubles(layout.sequence_tiles, Math.floor(Math.floor(layout.sequence / layout.context_parallel) / facts.tile_tokens));
    }

    /* Tiles of tokens, then checkpoints on the host, too, of layers that a library recomputes; on one GPU states are there as well. */
    function tiled(layout) {
      const recomputed = Object.assign({ recompute_policy: 3 }, layout.gpus === 1 ? { zero_stage: 3, offload: 1 } : {}, fused(layout)), places = layout.values.library_kernels ? range(layout.checkpoints_on_host, 1) : [];
      return places.flatMap(host => moreTiles(layout).map(tiles => Object.assign({ sequence_tiles: tiles, checkpoints_on_host: host }, recomputed)));
    }

    function frugalOnOneGpu(layout) {
      return [layout.sequence, ...halves(layout.sequence, 1)].flatMap(sequence => {
        const frugal = Object.assign({ microbatch: 1, sequence: sequence }, fused(layout));
        return repairs(layout).flat().map(changes => Object.assign({}, frugal, changes));
      });
    }

    function frugalChanges(layout) {
      const frugal = Object.assign({ microbatch: 1 }, fused(layout)), found = [Object.assign({ zero_stage: 3 }, frugal)];
      doubles(1, facts.most_tensor * facts.most_pipeline).forEach(ranks => {
        const t = Math.max(layout.tensor_parallel, Math.min(ranks, facts.most_tensor));
        const p = Math.max(layout.pipeline_parallel, Math.floor(ranks / t));
        found.push(Object.assign({ zero_stage: p === 1 ? 3 : 1, tensor_parallel: t, pipeline_parallel: p }, frugal));
      });
      return found;
    }

    function* first(layout, tries) {
      for (const changes of tries) {
        const other = changed(layout, changes), found = needed(other);
        yield;
        if (found) return { layout: other, bytes: found[0], fullest: found[2], changes: difference(layout, other) };
      }
    }

    function difference(layout, other) {
      return Object.fromEntries(CHANGED.filter(name => layout[name] !== other[name]).map(name => [name, other[name]]));
    }

    /* The smallest change that fits, for each thing that can change, and on one GPU with recomputation; where none does, all at once that
       costs no time. It stops after every layout that it tried, as the search does. */
    function* nearest(layout) {
      const found = [];
      for (const tries of singleChanges(layout)) {
        const other = yield* first(layout, tries);
        if (other) found.push(other);
      }
      if (found.length) return found;
      const near = [];
      for (const less of [tiled(layout), frugalOnOneGpu(layout)]) {
        const other = yield* first(layout, less);
        if (other) near.push(other);
      }
      for (const part of [1, 2, 4, 8, 16]) {
        const sequence = Math.floor(layout.sequence / part);
        for (let gpus = layout.gpus; sequence && gpus <= facts.most_gpus; gpus *= 2) {
          const asked = Object.assign({}, layout, { sequence: sequence, gpus: gpus }), other = yield* first(asked, frugalChanges(asked));
          if (other) return near.concat(Object.assign(other, { changes: difference(layout, other.layout) }));
        }
      }
      return near;
    }

    // --- search.py: all legal layouts, and the best

    function* rows(asked, contexts) {
      const { gpus, batch, sequence } = asked, sizes = asked.values, experts = sizes.experts;
      const policies = sizes.library_kernels ? [0, 1, 3] : [0, 1, 2, 3];
      for (const t of divisors(gpus)) {
        if (sizes.ranks_per_node % t || sizes.key_value_heads % t || (experts && t > 1)) continue;
        for (const [p, d, v, ends, c] of pipelines(asked, t, contexts)) {
          const cuts = t > 1 && Math.floor(sequence / c) % t === 0 ? [0, 1] : [0], copies = d / c;
          const stages = d === 1 ? [0] : p > 1 ? [0, 1] : [0, 1, 2, 3], shares = divisors(gcd(d, experts || 1));
          for (const b of divisors(batch / copies)) {
            const m = batch / (copies * b);
            if (m < p || (v > 1 && m % p)) continue;
            for (const z of stages) for (const cut of cuts) for (const policy of policies) for (const e of shares) for (const mix of mixes(asked, t, c)) {
              yield { tensor_parallel: t, pipeline_parallel: p, stages_per_rank: v, shorter_ends: ends, context_parallel: c,
                context_mix: mix, expert_parallel: e, microbatch: b, zero_stage: z, sequence_parallel: cut, recompute_policy: policy, accumulation_steps: m,
                shard_groups: 1, offload: 0, sequence_tiles: 1, checkpoints_on_host: 0 }; // others are for whoever fixes them
            }
          }
        }
      }
    }

    function* pipelines(asked, t, contexts) {
      const layers = asked.values.layers;
      for (const p of divisors(asked.gpus / t)) {
        const d = asked.gpus / (t * p);
        for (const c of divisors(d).filter(c => contexts.includes(c) && mayShare(asked, t, c))) {
          if (asked.batch % (d / c) || p > layers) continue;
          if (layers % p === 0) for (const v of p > 1 ? divisors(layers / p) : [1]) yield [p, d, v, 0, c];
          if (p > 1 && (layers + 2) % p === 0 && layers + 2 > p) yield [p, d, 1, 1, c];
        }
      }
    }

    function mayShare(asked, t, c) {
      return c === 1 || (asked.values.library_kernels && asked.sequence % (2 * c) === 0);
    }

    /* Search of search.py. It stops after every layout that it tried, so that whoever asks can let the page breathe. */
    function* tried(asked, contexts) {
      const found = { layouts: [], needed: [], seconds: [], right: [], fits: [] };
      for (const row of rows(asked, contexts)) {
        const layout = Object.assign({}, asked, row), made = solved(layout);
        found.layouts.push(layout);
        found.needed.push(made ? made[0] : Infinity);
        found.seconds.push(made ? made[1] : Infinity);
        found.right.push(!!made);
        found.fits.push(!!made && made[0] <= asked.values.gpu_memory_bytes);
        yield;
      }
      found.legal = found.right.filter(Boolean).length;
      found.fitting = found.fits.filter(Boolean).length;
      return found;
    }

    /* The nearest smaller and larger batch that have a layout: _near_batches of search.py. */
    function nearBatches(asked) {
      const legal = batch => batch > 0 && batch <= facts.most_batch && !rows(Object.assign({}, asked, { batch: batch }), [1]).next().done;
      const below = divisors(asked.gpus).map(copies => Math.floor(asked.batch / copies) * copies);
      const above = divisors(asked.gpus).map(copies => (Math.floor(asked.batch / copies) + 1) * copies);
      return [below.sort((a, b) => b - a).find(legal), above.sort((a, b) => a - b).find(legal)].filter(Boolean);
    }

    function alike(one, other) {
      return ["tensor_parallel", "pipeline_parallel", "context_parallel"].every(name => one[name] === other[name]);
    }

    function* best(found, asked) {
      const left = found.fits.slice(), chosen = [], rowsOf = layout => Math.min(facts.enough_rows, layout.microbatch * asked.sequence);
      while (chosen.length < facts.most && left.includes(true)) {
        const fastest = argmin(found.seconds, left), same = found.layouts.map(layout => alike(layout, found.layouts[fastest]));
        const asFast = left.map((there, k) => there && same[k] && found.seconds[k] <= (1 + facts.worth) * found.seconds[fastest]);
        const most = Math.max(...found.layouts.filter((_, k) => asFast[k]).map(rowsOf));
        yield;
        const equal = asFast.map((there, k) => there && rowsOf(found.layouts[k]) === most);
        chosen.push(candidate(found, simplest(found, equal), same));
        chosen[chosen.length - 1].stages = [0, 1, 2, 3].filter(stage => equal.some((there, k) => there && found.layouts[k].zero_stage === stage));
        same.forEach((there, k) => { if (there) left[k] = false; });
        yield;
      }
      return chosen;
    }

    /* The first of the least, by facts.simplest and then by bytes. */
    function simplest(found, among) {
      const key = k => facts.simplest.map(name => found.layouts[k][name]).concat(found.needed[k]);
      return among.reduce((best, there, k) => {
        if (!there || best < 0) return there ? k : best;
        const mine = key(k), theirs = key(best), differs = mine.findIndex((value, n) => value !== theirs[n]);
        return differs >= 0 && mine[differs] < theirs[differs] ? k : best;
      }, -1);
    }

    function candidate(found, place, same) {
      const layout = found.layouts[place], fullest = solved(layout)[2];
      const values = BOOK.models[name](Object.assign(given(layout), { pipeline_rank: layout.pipeline_parallel - 1 })), parts = partsOf(values);
      return { layout: layout, bytes: found.needed[place], fullest: fullest, seconds: values.layout_seconds,
        tokens: values.layout_tokens_per_second, parts: parts, binds: binds(found, place, same, parts) };
    }

    /* Seconds of each part of a step: parts_of of speeds.py. */
    function partsOf(values) {
      const layer = values.layer_seconds, gradient = values.layer_gradient_seconds, steps = values.accumulation_steps;
      const head = values.slowest_rank_seconds > values.middle_rank_layers * layer ? 1 : 0;
      const layers = values[head ? "last_rank_layers" : "middle_rank_layers"];
      const parts = { products: values.layer_forward_seconds + gradient, recomputing: values.layer_backward_seconds - gradient, moving: values.layer_moving_seconds,
        messages: values.layer_waiting_seconds, experts: values.layer_expert_seconds + values.layer_expert_tensor_seconds, exchange: values.layer_context_seconds };
      parts.launching = Math.max(0, layer - Object.values(parts).reduce((sum, one) => sum + one, 0));
      Object.keys(parts).forEach(part => { parts[part] *= steps * layers; });
      return Object.assign(parts, { head: steps * head * values.head_seconds, bubble: values.bubble_seconds,
        passing: values.pipeline_passing_time_seconds, exposed: values.data_exposed_seconds, update: values.rank_update_seconds });
    }

    /* What keeps a layout from being faster: memory, where the same degrees are faster in a layout that does not fit; else the longest
       wait. */
    function binds(found, place, same, parts) {
      const seconds = found.seconds[place], faster = found.right.map((there, k) => there && same[k] && found.seconds[k] < (1 - facts.worth) * seconds);
      const other = argmin(found.needed, faster);
      if (other >= 0) {
        const turned = facts.knobs.filter(knob => found.layouts[other][knob] !== found.layouts[place][knob]);
        return { memory: Object.fromEntries(turned.map(knob => [knob, found.layouts[other][knob]])), seconds: found.seconds[other],
          missing: found.needed[other] - found.layouts[other].values.gpu_memory_bytes };
      }
      const [part, taken] = Object.entries(parts).filter(([part]) => !facts.work.includes(part)).reduce((one, next) => (next[1] > one[1] ? next : one));
      return taken / seconds < facts.worth ? {} : { part: part, share: taken / seconds };
    }

    /* LayoutPlan as a generator; what is asked has model, gpu, gpus, batch, sequence, kernels, recipe and `values`. */
    function* plan(asked) {
      let found = yield* tried(asked, [1]);
      if (!found.fitting) {
        const shared = yield* tried(asked, facts.contexts);
        if (shared.fitting) found = shared;
      }
      if (!found.layouts.length) {
        const near = nearBatches(asked).map(BOOK.show);
        throw new BOOK.InvalidQuantity("batch", asked.batch, "batch = " + BOOK.show(asked.batch) + " on gpus = " + BOOK.show(asked.gpus) + ": no layout: " + facts.rule +
          (near.length ? ". A batch of " + near.join(" or ") + " has one." : "."));
      }
      const chosen = yield* best(found, asked), smallest = argmin(found.needed, found.right);
      return { legal: found.legal, fitting: found.fitting, tried: found.layouts.length, best: chosen,
        nearest: chosen.length || smallest < 0 ? [] : yield* nearest(found.layouts[smallest]) };
    }

    /* The quantities that an explorer takes from a layout, with the fullest rank on show. */
    function knobs(layout, fullest) {
      const values = given(layout), cut = layout.tensor_parallel > 1 ? layout.sequence_parallel : 1;
      return Object.assign(values, { pipeline_rank: fullest, sequence_parallel: cut, regather: cut,
        max_sequence: Math.max(values.max_sequence, values.sequence) });
    }

    /* The layout that an explorer shows. */
    function shown(values, chosen) {
      const copy = values.tensor_parallel * values.pipeline_parallel;
      return Object.assign({}, values, chosen, { values: values, gpus: values.data_parallel * copy, sequence: values.sequence * values.context_parallel,
        context_mix: values.context_parallel > 1 ? values.context_mix : 0 });
    }

    return { plan, tried, nearest, knobs, shown };
  };
})();
