"""Every formula gives what it gave before the formulas were written without twins: 34
configurations, recorded by record_formula_values.py from the code of the commit that is stored with
them."""

import json
from functools import cache

import pytest
from record_formula_values import STORED

from coursekit.formulas import BOOK, InvalidQuantity, evaluate

BEFORE = json.loads(STORED.read_text())
PLACES = range(len(BEFORE["given"]["layers"]))

# A formula that is gone -> the one that says the same, with what else is given to it.
SAID_OTHERWISE = {
    "head_size": ("head_columns", {}),
    **{
        f"zero_bytes_in_stage_{stage}": ("zero_states_bytes", dict(zero_stage=stage))
        for stage in range(4)
    },
    **{
        f"zero_sent_in_stage_{stage}": ("zero_sent_bytes", dict(zero_stage=stage))
        for stage in (1, 2, 3)
    },
}
# A formula that is gone, and with it its number, which no page and no lab printed: maxima and
# remainders inside a layer, the head and unfused attention, which are places now (places.py).
# What a card has left or is short of, and whether it holds all: MemoryBar.room.
GONE = {
    "peak_spare_bytes",
    "peak_overflow_bytes",
    "step_fits",
    "overflow_bytes",
    "states_fit",
    "zero_spare_bytes",
    "zero_overflow_bytes",
    "zero_states_fit",
    "ranks_behind",
    "ranks_behind_right",
    "zero_ranks_behind",
    "zero_ranks_behind_right",
    "activations_at_core_bytes",
    "activations_at_down_bytes",
    "activations_at_mlp_bytes",
    "activations_at_up_bytes",
    "activations_in_attention_bytes",
    "attention_backward_bytes",
    "attention_done_parameters",
    "attention_forward_bytes",
    "attention_norm_bytes",
    "backward_floor_bytes",
    "core_backward_bytes",
    "gradients_at_mlp_bytes",
    "gradients_in_attention_bytes",
    "head_backward_bytes",
    "head_norm_bytes",
    "head_product_bytes",
    "mlp_backward_bytes",
    "mlp_down_backward_bytes",
    "mlp_down_cast_bytes",
    "mlp_down_floor_bytes",
    "mlp_gate_backward_bytes",
    "mlp_needs_most",
    "mlp_up_backward_bytes",
    "mlp_up_cast_bytes",
    "mlp_up_floor_bytes",
    "query_forward_bytes",
    "query_key_value_backward_bytes",
    "query_key_value_product_bytes",
    "score_forward_bytes",
    "score_softmax_bytes",
}

# A formula whose number was wrong, and that has a test of its own since: seconds of a step were not
# those of its events, GPT-2's token table counted as equal buckets, a
# node had one network card, and all traffic of ZeRO was
# hidden under all computing.
MENDED = {
    "all_buckets_seconds",
    "compute_seconds",
    "data_parallel_step_seconds",
    "efficiency_without_overlap",
    "exposed_seconds",
    "fastest_all_reduce",
    "fastest_all_reduce_seconds",
    "fastest_bus_bytes_per_second",
    "gradient_buckets",
    "hidden_seconds",
    "hierarchical_all_reduce_seconds",
    "scaling_efficiency",
    "step_without_overlap_seconds",
    "zero_hiding_tokens",
    "zero_step_seconds",
    # in stage 3 a unit had one shard, and has one for each parameter since
    "zero_step_counter_bytes",
    # a pipeline reduced in each microbatch in stages 2 and 3, and reduces once since
    "zero_communication_seconds",
    "zero_reductions",
    "zero_sent_bytes",
    "zero_sent_in_stage_2",
    "zero_sent_in_stage_3",
    "zero_traffic_parameters",
}
GONE |= {"bucket_seconds", "zero_overlapped_step_seconds"}
# An optimizer of master copies updated all of them at once, and takes a pile at a time since.
IN_PILES = {
    "gradients_at_peak_bytes",
    "optimizer_peak_bytes",
    "optimizer_temporary_bytes",
    "peak_bytes",
    "peak_point",
    "recompute_peak_bytes",
    "recompute_peak_place",
    "temporaries_at_optimizer_bytes",
    "temporaries_at_peak_bytes",
}
# Ranks of data parallelism are d: what these formulas took as `ranks` is `data_parallel` since.
RANKS_WERE_ANY = {
    "data_parallel_sent_bytes",
    "per_tensor_seconds",
    "server_messages",
    "server_received_bytes",
    "server_seconds",
    "server_sent_bytes",
}


def given_at(place):
    return {name: row[place] for name, row in BEFORE["given"].items()}


@cache
def all_at(place):
    """Every formula at once, but for those that were refused there."""
    kept = set(BEFORE["values"]) & set(BOOK.formulas) - MENDED - RANKS_WERE_ANY
    names = [name for name in kept if not isinstance(before(name, place), str)]
    return evaluate(names, allow_unused=True, **given_at(place))


def before(name, place):
    return BEFORE["values"][name][place] if name in BEFORE["values"] else None


def value_now(name, place, more):
    if not more and name in all_at(place):
        return all_at(place)[name]
    try:
        return evaluate([name], allow_unused=True, **{**given_at(place), **more})[name]
    except InvalidQuantity as refused:
        return str(refused)


def test_each_formula_that_is_gone_is_listed():
    """Must catch: a quantity dropped on the way, which a page or a lab may want."""
    assert set(BEFORE["values"]) - set(BOOK.formulas) == set(SAID_OTHERWISE) | GONE


@pytest.mark.parametrize("place", PLACES)
def test_the_values_are_what_they_were(place):
    """Whole quantities to the unit, floats to rounding, refusals in the same words. Must catch: a
    term lost in a sum that was generated, a place of the step with another's parts, a maximum that
    names the wrong place where two are equal."""
    changed, masters = [], BEFORE["given"]["master_element_bytes"][place]
    for name in sorted(set(BEFORE["values"]) - GONE - MENDED - (IN_PILES if masters else set())):
        now, more = SAID_OTHERWISE.get(name, (name, {}))
        if name in RANKS_WERE_ANY:
            more = dict(data_parallel=BEFORE["given"]["ranks"][place])
        was, got = before(name, place), value_now(now, place, more)
        if got != (pytest.approx(was, rel=1e-12) if isinstance(was, float) else was):
            changed.append(f"{name} was {was}, is {got}")
    assert changed == []
