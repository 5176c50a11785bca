"""Numbers, equations and the formula sheet: what a page prints comes out of the registry, and a
wrong call stops the build."""

import json
import re
from html import unescape

import pytest
from pages import chapter
from told import cells, from_told

from bookkit.explorer import anchor
from bookkit.formulas import MISTAKES, compute
from bookkit.laws import confirm
from coursekit.formulas import BOOK, GPUS, LINKS, MODELS, RECIPES
from coursekit.formulas.render import right_hand_side

# Of calls in told.md.
GPT3 = 'parameters=175_000_000_000, recipe="fp32 Adam"'
ALONE = (
    'model="GPT-3 175B", recipe="bf16 + fp32 master", microbatch=4, sequence=2048,'
    " tensor_rank=0, accumulation_steps=1, tensor_parallel=1"
)


# --- the number roles -----------------------------------------------------------------------------


@from_told("call, style, printed, said", cells, GPT3=GPT3, ALONE=ALONE)
def test_a_call_is_printed_with_its_origin(call, style, printed, said):
    """Mutation: print days as seconds; leave the unit out; show the rounded value on hover; call
    the range, "bytes, any number", a unit; a number of the call's without its separators; any place
    of a peak taken."""
    shown, origin = compute(f"{call} {style}".rstrip())[:2]
    assert shown == printed and origin.endswith(said)


def test_numbers_on_a_page(build):
    """Mutation: print without escaping, or a space that breaks; an input with the number of
    another."""
    index = f"# It takes {{bytes}}`states_bytes({GPT3}) as TB`\n\n"
    index += "{number}`training_days(training_seconds=86400)`\n\n"
    index += f"| a |\n|--|\n| {{bytes}}`parameter_bytes({GPT3}) as GB` |\n"
    pages, warnings = build(index=index)
    assert not warnings
    found = re.findall(r'<span data-call="([^"]*)">([^<]*)</span>', pages["index"])
    printed = {text.replace("\N{NO-BREAK SPACE}", "_") for _, text in found}
    assert printed == {"2.8_TB", "1_day", "700_GB"}
    (inputs,) = re.findall(r'id="inputs">(.*?)</script>', pages["index"])
    said = ["parameters=175,000,000,000", 'recipe="fp32 Adam"', "training_seconds=86,400"]
    assert json.loads(inputs) == said
    assert [call for call, _ in found] == [
        "states_bytes(0 1) = 2,800,000,000,000 bytes",
        "training_days(2) = 1 days",
        "parameter_bytes(0 1) = 700,000,000,000 bytes",
    ]


def test_a_wrong_call_is_a_warning_with_page_and_line(build):
    """The book is built with warnings as errors, so this stops it.

    Mutation: leave the location out, or print the text as it stands without a word."""
    calls = '{bytes}`states_bytes(parameters=1)` and\n\n{bytes}`parameters(model="T4")`\n\n'
    calls += '{bytes}`parameters(model="GPT-2 124M")`\n'
    pages, warnings = build(index=f"# One\n\nfine\n\n{calls}")
    for line, message in (
        (5, "needed but not given"),
        (7, "no model is named 'T4'"),
        (9, "not in bytes; use the role {number}"),
    ):
        assert re.search(rf"index\.md:{line}: WARNING: .*{re.escape(message)}", warnings), warnings


def test_quantities_with_a_name(build):
    """Mutation: let the named quantities come after the keywords of the call; keep the names for
    the next page."""
    small = '```{given} small\nparameters=1_000,\nrecipe="fp32 Adam"\n```\n\n'
    calls = "small", "small, parameters=2_000", "wide"
    pages, warnings = build(
        index=f"# One\n\n{small}```{{given}} wide\nsmall, gradient_bytes=0\n```\n\n"
        + " ".join(f"{{bytes}}`states_bytes({call}) as kB`" for call in calls)
        + "\n",
        other="# Two\n\n{bytes}`states_bytes(small)`\n\n" + small + small,
    )
    printed = re.findall(
        r"<span data-call=[^>]*>([^<]+)<", pages["index"].replace("\N{NO-BREAK SPACE}", " ")
    )
    assert printed == ["16 kB", "32 kB", "12 kB"]
    assert '["parameters=1,000","recipe=\\"fp32 Adam\\"","parameters=2,000",' in pages["index"]
    assert 'data-call="states_bytes(0 1) = 16,000 bytes"' in pages["index"]
    assert 'data-call="states_bytes(2 1) = 32,000 bytes"' in pages["index"]
    assert "other.md:3: WARNING: states_bytes(small): 'small'" in warnings
    assert "{given} small: this name is on the page already." in warnings
    assert "index.md" not in warnings


# --- equations ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def book(build_once):
    """Name -> HTML of a page with equations, and of a sheet with all formulas."""
    equations = "# Page\n\n```{equation} training_flops\n:numbered:\n```\n\n"
    equations += "see {eq}`eq-training-flops`\n\n```{equation} achieved_flops_per_second"
    equations += " training_seconds\n```\n"
    pages, warnings = build_once(
        index="# Index\n\n[one](#formula-states-bytes)\n",
        equations=f"---\norphan: true\n---\n{equations}",
        sheet="---\norphan: true\n---\n# Sheet\n\n```{formula-sheet}\n```\n",
    )
    assert not warnings and 'href="sheet.html#formula-states-bytes"' in pages["index"]
    return pages


def test_an_equation_with_a_number_given(build):
    """Mutation: `where` left with both sides, or `choose` with all of its values; the parts that
    depend on the stage not written out; the z of "if z = 1" not explained below; an unknown name
    given and no warning."""
    assert right_hand_side("zero_states_bytes", given={"zero_stage": 2}) == (
        r"\beta_\text{param}\,\Psi + \beta_\text{grad}\,\Psi_r"
        r" + \left(\beta_\text{master} + n_\text{mom}\,\beta_\text{mom}\right)\,\Psi_r"
    )
    assert right_hand_side("pipeline_idle_seconds", given={"pipeline_schedule": 2}) == (
        r"p_\text{last}\,\tau_\text{mb}"
    )
    asked = "zero_states_bytes(zero_stage=1) zero_states_bytes(zero_stage=3)"
    text = "# Page\n\n```{equation} %s\n```\n"
    pages, warnings = build(index=text % asked)
    assert not warnings
    assert pages["index"].count("<math") == 10  # the block, a symbol on its left, 7 on its right, z
    pages, warnings = build(index=text % "zero_states_bytes(zero_level=1)")
    assert "no formula is named zero_level" in warnings


@pytest.mark.slow
def test_an_equation_with_its_meaning(book):
    """Mutation: number every formula of a block, or link to a sheet that the book does not have."""
    page = book["equations"]
    # two blocks, three symbols on the left before meanings, five on the right
    assert page.count("<math") == 10 and page.count('<mtable displaystyle="true"') == 1
    assert page.count('class="eqno"') == 1
    assert all(f'{link}equation-eq-training-flops"' in page for link in ('href="#', 'id="'))
    linked = re.findall(r'<a href="sheet\.html#formula-([^"]*)">', page)
    assert linked == ["training-flops", "achieved-flops-per-second", "training-seconds"]


def test_symbols_on_the_right_are_explained_once(build):
    """Must catch: the symbols on the right left out, said with every equation, or said although the
    text names them; an equation without new symbols that says "On the right"."""
    equations = "```{equation} achieved_flops_per_second training_seconds\n```\n"
    pages, warnings = build(
        index=f"# Page\n\nThe share $\\eta$, $n$ GPUs.\n\n{equations}\n\n{equations}"
    )
    assert not warnings
    said = re.findall(r'(?s)<p class="equation-meaning">(.*?)</p>', pages["index"])
    said = [
        " ".join(re.sub(r"<math.*?</math>|<[^>]+>", "", text, flags=re.S).split()) for text in said
    ]
    means = {name: " ".join(known.meaning.split()) for name, known in BOOK.formulas.items()}
    left = f"{means['achieved_flops_per_second']}; {means['training_seconds']}."
    rate = BOOK.find("flops_per_second").meaning.replace("'", "\u2019")
    assert said == [f"{left} On the right: {rate}; {means['training_flops']}.", left]


def test_small_print_and_exact_forms_are_folded(build):
    """Must catch: long meanings in sight; short ones folded; a generated form in sight beside the
    form for people."""
    short = "```{equation} training_flops\n```\n"
    right = "```{equation} message_seconds\n```\n"
    both = "```{equation} stage_layers held_layers held_activation_bytes\n```\n"
    human = "```{equation} message_seconds\n$$ t = \\alpha + S / B $$\n```\n"
    pages, warnings = build(index="# Page\n\n" + "\n\n".join([short, right, both, human]))
    assert not warnings
    meaning, found = '<p class="equation-meaning">', []
    for part in re.split(r"(?s)(<details.*?</details>)", pages["index"]):
        title = re.search("<summary>(.*?)</summary>", part)
        found.append((title and title[1], part.count('display="block"'), part.count(meaning)))
    assert found == [
        (None, 2, 2),  # a short one whole, and the left side of the next
        ("What the symbols mean", 0, 1),
        (None, 1, 0),
        ("What the symbols mean", 0, 1),
        (None, 1, 0),
        ("The exact form", 1, 1),
        (None, 0, 0),
    ]


def test_an_equation_in_a_book_without_a_sheet(build):
    """Mutation: write href="None#formula-..."; skip an unknown formula silently."""
    equation = "```{equation} training_flop%s\n```\n\n"
    pages, warnings = build(index=f"# Page\n\n{equation}{equation}" % ("s", ""))
    assert "#formula" not in pages["index"]
    assert "operations of the whole training" in pages["index"]
    assert "index.md:6: WARNING: no formula is named training_flop" in warnings
    assert warnings.count("WARNING") == 1


# --- the sheet ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sheet_holds_everything(book):
    """Mutation: skip a module, or the formulas that have no test yet."""
    sheet = book["sheet"]
    begins = r'<div class="[^"]*formula[^"]*" id="([^"]*)">'
    ends = r'</div>\s*(?=<div class="[^"]*formula|</section>)'
    entries = dict(re.findall(f"{begins}(.*?){ends}", sheet, re.S))
    for name, formula in BOOK.formulas.items():
        entry = entries.get(anchor(name), "")
        assert "<math" in entry, name
        plain = unescape(re.sub(r"<[^>]*>", "", entry)).replace("’", "'")
        said = (formula.measured_by, f"Unit: {formula.unit}.", formula.source, formula.meaning)
        assert all(words in plain for words in said)
        for need in formula.needs:
            assert re.search(rf'href="(sheet\.html)?#{anchor(need)}"', entry)
    for name in BOOK.quantities:
        assert f'id="{anchor(name)}"' in sheet
    for name in (*MODELS, *RECIPES, *GPUS, *LINKS):
        assert f"<td><p>{name}</p></td>" in sheet
    ids = re.findall(r'id="([^"]+)"', sheet)
    assert len(ids) == len(set(ids))


SHEETS = "# Index\n\n```{{equation}} training_flops\n```\n\n```{{formula-sheet}} {}\n```\n"
OTHERS = "---\norphan: true\n---\n# Sheet\n\n```{{formula-sheet}} {}\n```\n"


@pytest.mark.slow
def test_a_sheet_of_several_pages(build):
    """Mutation: remember only the last sheet of the book."""
    sheet = OTHERS.format("given recipes models gpus links states model")
    pages, warnings = build(index=SHEETS.format("time"), sheet=sheet)
    forgotten = {formula.group for formula in BOOK.formulas.values()} - {"time", "states", "model"}
    assert f"no formula sheet prints {', '.join(sorted(forgotten))}" in warnings
    assert warnings.count("WARNING") == 1
    assert 'id="formula-states-bytes"' in pages["sheet"]
    assert 'id="formula-training-flops"' not in pages["sheet"]
    for link in ("#formula-training-flops", "sheet.html#formula-parameters"):
        assert f'href="{link}"' in pages["index"]
    assert 'href="sheet.html#formula-tokens"' in pages["index"]


@pytest.mark.slow
def test_sheets_that_forget_or_repeat_are_warnings(build):
    """Mutation: look only at whether there is a sheet."""
    _, warnings = build(index=SHEETS.format("states"), sheet=OTHERS.format("given states"))
    assert "states is unknown, or on another formula sheet" in warnings
    forgotten = re.search("no formula sheet prints (.*)", warnings)[1].split(", ")
    assert "time" in forgotten and "states" not in forgotten
    _, warnings = build(index=SHEETS.format("sattes"))
    assert "sattes is unknown, or on another formula sheet; there are given, " in warnings


@pytest.mark.slow
def test_the_sheets_numbers_of_recipes_and_gpus(book):
    """Mutation: say yes for all; swap the two columns; bytes of all parameters for recipes that
    train adapters alone."""

    def cells(name):
        row = re.search(
            rf"<tr[^>]*><td><p>{re.escape(name)}</p></td>(.*?)</tr>", book["sheet"], re.S
        )
        return re.findall(r"<p>(.*?)</p>", row[1], re.S)

    for recipe in RECIPES.values():
        bytes_each = BOOK.formulas["bytes_per_parameter"](**recipe.quantities)
        bytes_each = "–" if recipe.quantities.get("adapter_rank") else bytes_each
        verified = "yes" if recipe.verified else "not yet"
        assert cells(recipe.name)[4:6] == [str(bytes_each), verified], recipe.name
    assert cells("A100 SXM 80GB")[:3] == ["85.1", "79.3", "312"]


STAGE_1 = 'zero_states_bytes(recipe="bf16 + fp32 master", rank=0, zero_stage=1)'


def test_what_the_registry_says_is_a_law():
    """Must catch: a right law refused; one of no formula."""
    confirm("4*parameters + 12*parameters/data_parallel", STAGE_1)
    with pytest.raises(MISTAKES):
        confirm("parameters", "no_such_formula()")


def test_the_cheatsheet_has_no_formula_of_its_own():
    """Must catch: a sum or a quotient between dollars, which nothing confirms."""
    page = chapter("cheatsheet")
    assert len(re.findall(r"\{law\}`", page)) >= 15
    typed = re.findall(r"\$([^$]+)\$", page)
    assert not [one for one in typed if re.search(r"[-+/]|\\frac", one)]
