"""The registry, its three renderings, and the formulas that can be compared with something real
without a training run."""

import math
import re
from collections import defaultdict

import pytest
from pages import ROOT, chapter
from told import cells, from_told, given

from coursekit import formulas
from coursekit.formulas import (
    BOOK,
    EXACT_LIMIT,
    MODELS,
    RECIPES,
    InvalidQuantity,
    Registry,
    evaluate,
    quantities,
    render,
)
from coursekit.formulas.subset import formula_of
from coursekit.show.explorers import EXPLORERS

# models that gpt.py can be: the others have norms of queries, four norms in a layer, or experts
OURS = EXPLORERS["where-the-memory-goes"].menus[0].names
SMALL = dict(
    layers=3,
    hidden=24,
    heads=6,
    key_value_heads=2,
    feed_forward=52,
    vocabulary=97,
    max_sequence=16,
    learned_positions=1,
    biases=1,
    gated_mlp=0,
    tied_head=0,
)


# --- the registry ---------------------------------------------------------------------------------


def registry_of(names, **expressions):
    """A registry of quantities by name and formulas as text."""
    registry = Registry()
    for name in names.split():
        registry.quantity(name, name, "count", "given")
    facts = dict(unit="bytes", meaning="", source="", measured_by="")
    for name, text in expressions.items():
        function = formula_of(text)
        function.__name__, function.__module__ = name, __name__
        registry.add(name, function, symbol=name, **facts)
    return registry


def test_names_resolve_and_a_given_name_takes_the_place_of_its_formula():
    """Mutation: resolve() ignores `given` and computes b from a all the same."""
    registry = registry_of("a", b="2 * a", c="ceil_div(b, a) + b", d="10 * b")
    assert registry.evaluate(["c", "b"], a=7) == {"c": 16, "b": 14}
    assert registry.evaluate(["d"], a=7, b=15, allow_unused=True) == {"d": 150}
    assert registry.evaluate(["c"], a=7, b=14) == {"c": 16}
    assert registry.resolve(["c"]) == (["b", "c"], ["a"])
    assert registry.formulas["c"](a=7) == 16  # a formula is callable


def test_a_rule_holds_from_the_moment_it_is_registered():
    """Must catch: the rules of a call remembered from before; a rule of other quantities applied;
    a rule that does without an assumed quantity and is not."""
    registry = registry_of("a b c")
    assert registry.validate(a=3, b=2) == {"a": 3, "b": 2}

    registry.given("- `a * c <= b` a, c=1: a = {a} must be at\n  most b = {b}.")
    with pytest.raises(InvalidQuantity, match="a = 3 must be at most b = 2."):
        registry.validate(a=3, b=2)
    assert registry.validate(a=3, c=2) == {"a": 3, "c": 2}
    assert registry.applicable_rules({"a", "b"}) == registry.rules


@from_told("body, why")
def test_a_formula_outside_the_subset_is_refused_when_it_is_defined(tmp_path, body, why):
    """Mutation: remove any one of the checks of check_subset; each formula here leaves the subset
    in one way."""
    source, named = tmp_path / "wrong.py", {}
    source.write_text(f"def wrong(q):\n    {body}\n")
    exec(compile(source.read_text(), source, "exec"), named)
    registry = Registry()
    with pytest.raises(TypeError, match=f"formula wrong: .*({why})"):
        type("Wrong", (registry.section(source="", measured_by=""),), {"wrong": named["wrong"]})
    assert not registry.formulas


def test_arguments_and_docstring_of_a_formula():
    """Must catch: a formula that takes its quantities as arguments and is called with `q`; a
    docstring without symbol or unit."""
    registry = Registry()
    registry.quantity("layers", "L", "count", "the layers")
    section = registry.section(source="", measured_by="")
    with pytest.raises(TypeError, match="twice takes q alone, not layers"):

        class Wrong(section):
            def twice(layers):
                """x | count | twice the layers"""
                return 2 * layers

    with pytest.raises(TypeError, match="unit"):

        class Silent(section):
            def thrice(q):
                """three times the layers"""
                return 3 * q.layers


@from_told("wrong, sentence", cells)
def test_bad_input_gets_one_sentence_with_the_value_and_the_rule(wrong, sentence):
    """Mutation: `number < self.least` becomes `<=`, a rule is dropped, or a message loses its
    value."""
    asked = given(wrong)
    with pytest.raises(InvalidQuantity) as caught:
        formulas.validate(**{**SMALL, **asked})
    assert str(caught.value) == sentence and caught.value.quantity in asked


def test_rules_also_hold_for_computed_quantities():
    """Mutation: evaluate() checks rules on the given names only; gpus_per_copy is computed here."""
    degrees = dict(gpus=64, data_parallel=2, tensor_parallel=8, pipeline_parallel=4)
    degrees |= dict(parameters=10**9, flops_per_second=1e12, utilisation=0.5)
    found = evaluate(["parameters_per_gpu", "achieved_flops_per_second"], **degrees)
    assert found["parameters_per_gpu"] == 31_250_000
    words = "data_parallel = 2 copies of 16 GPUs each do not make gpus = 64"
    with pytest.raises(InvalidQuantity, match=words):
        evaluate(["parameters_per_gpu"], allow_unused=True, **{**degrees, "tensor_parallel": 4})


# --- the second and third rendering ---------------------------------------------------------------


def test_long_equations_are_stacked():
    """Mutation: print nested cases, or sort the arguments of a maximum."""
    registry = registry_of(
        "",
        stages="where(first > 2, third, where(first > 1, second, minimum(second, 0, first)))",
        largest="maximum(third + second + first, 0, 2 * second + 3 * first + third + 7 * second)",
    )
    for name in ("first", "second", "third"):
        registry.quantity(name, name[0] + r"_\text{long}", "count", "")
    assert render.latex("stages", registry) == (
        r"stages = \begin{cases} t_\text{long} & \text{if } f_\text{long} > 2 \\ s_\text{long} &"
        r" \text{if } f_\text{long} > 1 \\ "
        r"\min\left(s_\text{long}, 0, f_\text{long}\right) & \text{otherwise} \end{cases}"
    )
    assert render.latex("largest", registry) == (
        r"largest = \max \begin{cases} t_\text{long} + s_\text{long} + f_\text{long} \\ 0 \\ "
        r"2\,s_\text{long} + 3\,f_\text{long} + t_\text{long} + 7\,s_\text{long} \end{cases}"
    )
    assert render.latex("largest", registry, symbol=lambda name: "x").startswith(
        r"x = \max \begin{cases}"
    ), "it depends on what is printed"
    code = render.javascript(["stages", "largest"], registry=registry)
    first, second, third = (
        re.search(rf'(\w) = given\(r, q, "{name}"', code)[1]
        for name in ("first", "second", "third")
    )
    assert f"Math.max({third} + {second} + {first}, 0, " in code
    assert f"Math.min({second}, 0, {first})" in code


def test_every_formula_prints_in_both_languages():
    """Must catch: a formula that cannot be printed; quotients that JavaScript would round; a rule
    that never holds, because one of its quantities does not exist."""
    code = render.javascript(list(BOOK.formulas))
    for name in BOOK.formulas:
        assert render.latex(name).startswith(BOOK.formulas[name].symbol)
        assert f'(r, "{name}", ' in code
    assert "Math.pow" not in code.replace("Math.pow(2, ", "") and "Math.ceil" not in code
    assert all(BOOK.find(name) for rule in BOOK.rules for name in rule.needs)


def test_short_names_of_variables():
    """Mutation: `do` and `if`, which come after 150 names; `r`, which would be overwritten."""
    names = [f"name_{k}" for k in range(2000)]
    short = render._letters(names)
    assert list(short) == names
    assert len({*short.values()}) == 2000
    assert not {"q", "r", "do", "if", "in"} & {*short.values()}
    code = render.javascript(["parameters", "states_bytes"])
    assert code.count("given(r, q, ") + code.count("exact(r, ") > 20


def test_symbols_are_not_shared():
    """Mutation: give two quantities the symbol C; an equation sheet on which one letter means two
    things is wrong."""
    names = defaultdict(list)
    for found in (*BOOK.quantities.values(), *BOOK.formulas.values()):
        names[found.symbol].append(found.name)
    shared = {symbol: of for symbol, of in names.items() if len(of) > 1}
    assert not shared, f"one symbol, several quantities: give each a subscript of its own: {shared}"


def test_every_formula_names_a_test_that_exists():
    """Mutation: rename a test; the formula sheet would point nowhere."""
    named = {formula.measured_by: name for name, formula in BOOK.formulas.items()}
    named |= {one.verified: name for name, one in RECIPES.items() if one.verified}
    for where, name in named.items():
        path, _, test = where.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
        assert re.search(rf"^def {test}\(", text, re.M), (
            f"{name} is measured by {where}, and there is no such test"
        )
    assert all(formula.source and formula.meaning for formula in BOOK.formulas.values())


# --- compared with something real --------------------------------------------------------------


MIXTURE = dict(experts=4, experts_per_token=2)


def build(**changes):
    import torch

    from shardlab.gpt import GPT, GPTConfig

    config = GPTConfig(**{**SMALL, **changes})
    with torch.device("meta"):
        return config, GPT(config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(biases=0, gated_mlp=1),
        dict(learned_positions=0, tied_head=1),
        dict(gated_mlp=1, learned_positions=0, biases=1, key_value_heads=6),
        dict(head_size=10, heads=5, key_value_heads=5),
        dict(head_size=9),
        dict(key_value_heads=1, heads=3),
        dict(MIXTURE, shared_experts=1),
        dict(MIXTURE, shared_experts=2, gated_mlp=1),
        dict(MIXTURE, shared_experts=2, gated_mlp=1, biases=0),
        MIXTURE,
    ],
)
def test_counts_of_each_part(changes):
    """Mutation: drop the gate's bias from mlp_parameters, or count the key-value size once or for
    each head, or forget the biases of shared experts."""
    config, model = build(**changes)
    count = lambda module: sum(p.numel() for p in module.parameters())
    block, given = model.blocks[0], config.quantities()
    assert formulas.head_columns(**given) == block.attention.head_size
    assert formulas.query_size(**given) == block.attention.output.weight.shape[1]
    columns = formulas.query_size(**given) + 2 * formulas.key_value_size(**given)
    assert columns == block.attention.qkv.weight.shape[0]
    assert formulas.attention_parameters(**given) == count(block.attention)
    if config.experts:
        each = count(block.mlp.experts) // config.experts
        assert formulas.mlp_parameters(**given) == each
    assert formulas.layer_mlp_parameters(**given) == count(block.mlp)
    assert formulas.norm_parameters(**given) == count(block.mlp_norm)
    assert formulas.layer_parameters(**given) == count(block)
    assert formulas.embedding_parameters(**given) == count(model.embedding)
    assert formulas.head_parameters(**given) == count(model.head.scores) * (1 - config.tied_head)
    assert formulas.parameters(**given) == count(model)


@pytest.mark.parametrize("name", OURS)
def test_parameter_tensors(name):
    """Every style, of three layers. Mutation: forget the bias of the gate, of the last norm, or the
    tied head."""
    config, model = build(**{**MODELS[name].quantities, "layers": 3})
    assert formulas.parameter_tensors(**config.quantities()) == len(list(model.parameters()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(gated_mlp=1, biases=0, learned_positions=0),
        dict(tied_head=1, key_value_heads=6),
        dict(head_size=10, heads=3, key_value_heads=1),
    ],
)
def test_matmul_flops(changes):
    """PyTorch's counter; 6 FLOPs per parameter and token are close for wide models. Mutation: count
    the tied head's product as free, or the attention scores once instead of twice (12 Lhs -> 6
    Lhs)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from shardlab.gpt import GPT, GPTConfig, next_token_loss

    config = GPTConfig(**{**SMALL, **changes}, fused_attention=False)
    model, batch, sequence = GPT(config), 2, 11
    tokens = torch.randint(config.vocabulary, (batch, sequence + 1))
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    given, flops = config.quantities(), formulas.matmul_flops_per_token
    per_token = flops(**given, sequence=sequence)
    assert counter.get_total_flops() == per_token * batch * sequence
    scores = 6 * config.layers * formulas.query_size(**given) * sequence
    assert per_token - flops(**given, sequence=sequence, causal_half=1) == scores
    wide = quantities(model="GPT-3 175B")
    of_parameters = formulas.training_flops(parameters=formulas.parameters(**wide), tokens=1)
    # at 175B the six-per-parameter rule leaves out 2.7 % of the work
    assert 0.97 < of_parameters / flops(**wide, sequence=2048) < 1


def test_degrees():
    """Mutation: add the degrees instead of multiplying them; the real grid of ranks is the
    witness."""
    grid = [(t, p) for t in range(4) for p in range(3)]
    assert formulas.gpus_per_copy(tensor_parallel=4, pipeline_parallel=3) == len(grid)


def test_what_is_given_is_a_table():
    """Must catch: `from` taken for `above`; a float that stops at 2^53; a range that nobody
    reads."""
    registry = Registry()
    registry.given(
        r"""
rows | m | count | rows of a
    table
rate | \eta | fraction, above 0 to 1 | a share
pace | B | bytes/s, above 0 | a rate
wait | \tau | seconds, from 0 | a time
"""
    )
    found = [(q.least, q.most, q.above) for q in registry.quantities.values()]
    rates = [(0, 1, True), (0, math.inf, True), (0, math.inf, False)]
    assert found == [(1, EXACT_LIMIT, False), *rates]
    assert registry.quantities["rows"].meaning == "rows of a table"


@pytest.mark.parametrize("gpu_memory_bytes", [1, 999, 1000, 1001, 10**9])
def test_fit(gpu_memory_bytes):
    """Mutation: the two of the difference swapped; gpus_to_hold_states rounded down."""
    given = dict(
        parameters=250,
        gpus_per_copy=4,
        gpu_memory_bytes=gpu_memory_bytes,
        **RECIPES["fp32 Adam"].quantities,
    )
    targets = ["spare_bytes", "states_bytes_per_gpu", "gpus_to_hold_states", "states_bytes"]
    got = evaluate(targets, **given)
    used = got["states_bytes_per_gpu"]
    assert used == 63 * 16
    assert got["spare_bytes"] == max(gpu_memory_bytes - used, 0)
    held = got["gpus_to_hold_states"]
    assert held * gpu_memory_bytes >= got["states_bytes"] > (held - 1) * gpu_memory_bytes


def test_time_is_work_over_rate():
    """Mutation: multiply by the utilisation instead of dividing, or divide days by 3600."""
    base = dict(
        parameters=10**9, tokens=20 * 10**9, gpus=8, flops_per_second=312e12, utilisation=0.4
    )
    days = formulas.training_days(**base)
    assert formulas.training_days(**{**base, "tokens": 40 * 10**9}) == 2 * days
    assert formulas.training_days(**{**base, "gpus": 16}) == days / 2
    assert formulas.training_days(**{**base, "utilisation": 0.2}) == 2 * days
    assert math.isclose(formulas.training_days(training_seconds=86_400.0), 1)
    assert math.isclose(
        formulas.training_seconds(training_flops=6e18, achieved_flops_per_second=1e12), 6e6
    )


def test_a_preset_without_a_note_keeps_its_test():
    """Must catch: the test of a preset taken for its note, where the line has none."""
    presets = [preset for kind in BOOK.presets.values() for preset in kind.values()]
    assert not any("|" in preset.note or "{" in preset.source for preset in presets)
    nanotron = BOOK.presets["kernels"]["nanotron"]
    assert nanotron.note == "" and nanotron.verified.endswith("::test_published_peaks")


# --- the notation page ----------------------------------------------------------------------------

PAGE = chapter("notation")
ROWS = re.findall(r"^\| \$(.+?)\$ \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
PLANNED = {"microbatches"}  # symbols of chapters to come, which no formula has yet
ALIKE = {
    "GPUs": "count",
    "tensors": "count",
    "days": "seconds",
    "tokens/GPU": "tokens",
    "tokens/s": "1/s",
}


def symbols_and_kinds():
    """Every quantity and formula of the book: name -> (symbol, what it counts)."""
    both = {**BOOK.formulas, **BOOK.quantities}
    units = {name: known.unit.split(",")[0] for name, known in both.items()}
    return {name: (both[name].symbol, ALIKE.get(unit, unit)) for name, unit in units.items()}


def letter(symbol):
    """The symbol without subscripts, superscripts and accents."""
    return re.match(r"\\[a-zA-Z]+|.", symbol)[0]


def test_the_table_is_the_registry():
    """Must catch: a symbol that the page prints otherwise than every equation, a name that no
    formula knows, a quantity listed twice."""
    known = symbols_and_kinds()
    names = [name for _, name, _ in ROWS]
    assert len(ROWS) > 20 and len(names) == len(set(names))
    for symbol, name, _ in ROWS:
        assert name in PLANNED or known[name][0] == symbol, f"{name} is {known[name][0]}"


def test_one_letter_one_kind():
    """Must catch: T for tokens, seconds and temporaries, B for a bandwidth and for bytes, m for
    microbatches and for rows of a matrix."""
    kinds = defaultdict(lambda: defaultdict(list))
    for name, (symbol, unit) in symbols_and_kinds().items():
        kinds[letter(symbol)][unit].append(name)
    mixed = {letter: dict(units) for letter, units in kinds.items() if len(units) > 1}
    assert not mixed, f"a letter of several kinds: give one of them another letter: {mixed}"


def test_each_letter_is_explained():
    """Must catch: a letter that equations use and the notation page does not name."""
    there = {letter(symbol) for symbol, _ in symbols_and_kinds().values()}
    said = set(re.findall(r"\$(\\[a-zA-Z]+|[a-zA-Z1])(?:_|\$|\^)", PAGE))
    new = sorted(there - said)
    assert not new, f"chapters/notation.md lacks a row in a table of letters, | $Y$ | ... |: {new}"
