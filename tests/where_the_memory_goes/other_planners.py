"""The bytes of a GPU as four other tools count them, for the rows of published_peaks.csv. Formulas
are written here from each tool's source, at the commit named; none of their code is copied.
"""


class Asked:
    """The answers that the tools ask for: sizes of the model and degrees of the layout."""

    def __init__(self, layout, parameters):
        sizes = layout.sizes
        self.layout, self.parameters = layout, parameters
        self.layers, self.hidden = sizes["layers"], sizes["hidden"]
        self.inner, self.vocabulary = sizes["feed_forward"], sizes["vocabulary"]
        self.heads = sizes["heads"]
        self.tied = sizes["tied_head"]
        self.t, self.p = layout.tensor_parallel, layout.pipeline_parallel
        self.c, self.stage = layout.context_parallel, layout.zero_stage
        self.d = layout.gpus // (self.t * self.p)
        self.tokens = layout.microbatch * layout.sequence
        self.dense = not sizes.get("experts")
        self.tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        self.layer = (parameters - self.tables) / self.layers


def accelerate(asked):
    """Four times the weights in fp32: weights, gradients and Adam's two moments; no layout and no
    activations, so only where nothing cuts the model. accelerate@16cb6eb
    src/accelerate/commands/estimate.py, estimate_training_usage."""
    if asked.t * asked.p == 1:
        return 4 * 4 * asked.parameters


def deepspeed(asked):
    """Model states of stage 2, 2 + 18 / d bytes a parameter, or of stage 3 with the largest layer
    gathered; no activations. Stage 1 is asked as stage 2. DeepSpeed@edaa722
    deepspeed/runtime/zero/stage_1_and_2.py and stage3.py, estimate_zero{2,3}_model_states."""
    if asked.t * asked.p > 1 or asked.stage < 1:
        return None
    shard = 18 * asked.parameters / asked.layout.gpus
    if asked.stage < 3:
        return 2 * asked.parameters + shard
    return 4 * max(asked.layer, asked.vocabulary * asked.hidden) + shard


def megatron(asked):
    """Its report without selective recomputation: 18 bytes a parameter of the fullest stage, 6 and
    12 / d with a distributed optimizer; 10 + 24 / t hidden vectors of a byte each for a token and
    layer. Here for dense models. Megatron-LM@d98e8a6
    megatron/training/theoretical_memory_usage.py."""
    if not asked.dense or asked.stage > 1 or asked.layout.recompute_policy:
        return None
    t, p, hidden, tokens = asked.t, asked.p, asked.hidden, asked.tokens
    table = asked.vocabulary * hidden
    tables = asked.tables if p == 1 else table
    states = (asked.layers * asked.layer / p + tables) / t
    states *= 6 + 12 / asked.d * asked.c if asked.stage else 18
    kept = tokens * hidden * (10 + 24 / t) * asked.layers + (8 + hidden) * tokens * p
    if asked.layout.stages_per_rank > 1:
        kept *= 1 + (p - 1) / (p * asked.layout.stages_per_rank)
    elif p > 1:
        kept *= min(1, asked.layout.steps / p)
    else:
        kept += 2 * tokens * (asked.vocabulary / t + hidden)
    return states + 1.05 * kept


def llm_analysis(asked):
    """Weights, gradients, states of Adam, activations of all layers, and the larger of the loss and
    a prefetched layer; one table, flash attention. Here for dense models, whole sequences.
    llm-analysis@d841e40 llm_analysis/analysis.py, training."""
    if not asked.dense or asked.c > 1:
        return None
    t, d, hidden, tokens = asked.t, asked.d, asked.hidden, asked.tokens
    own = t if asked.layout.cuts_tokens else 1
    table = asked.vocabulary * hidden
    held = (asked.layers // asked.p * asked.layer + table) / t
    states = held * (2 / (d if asked.stage > 2 else 1) + 12 / (d if asked.stage else 1))
    states += 4 * held / (d if asked.stage > 1 else 1)
    if asked.layout.recompute_policy:
        layer = 2 * tokens * hidden / t
    else:
        attention = (2 + 1) * hidden / own + (8 + 4) * hidden / t + 8 * asked.heads / t
        layer = tokens * (attention + (2 + 8) * hidden / own + 4 * asked.inner / t)
    logits = 2 * tokens * asked.vocabulary / t
    kept = asked.layers * layer + 2 * tokens * hidden / t + logits + 4 * tokens * hidden / own
    return states + kept + max(logits, 2 * (table + asked.layer) / t)


TOOLS = {
    "accelerate": accelerate,
    "DeepSpeed": deepspeed,
    "Megatron-LM": megatron,
    "llm-analysis": llm_analysis,
}
