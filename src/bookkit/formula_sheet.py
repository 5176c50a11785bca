"""The ``{formula-sheet}`` directive: what the registry and the presets hold, all or parts, as
sections of a page."""

import math
import re
import sys
from functools import partial
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import node_table, warn
from bookkit.explorer import anchor
from bookkit.formulas import code_name, compute, equation, formula_link
from coursekit.formulas import BOOK, EXACT_LIMIT, GPUS, LINKS, MODELS, RECIPES
from coursekit.formulas.registry import show
from coursekit.show.format import format_as

DASH = "\N{EN DASH}"


SHEET = re.compile(r"(?m)^`{3,}\{formula-sheet\}(.*)$")
GROUPS = list(dict.fromkeys(formula.group for formula in BOOK.formulas.values()))
PARTS = ("given", *GROUPS, "recipes", "models", "gpus", "links")


class FormulaSheetDirective(SphinxDirective):
    """``{formula-sheet} [part ...]``: sections for what is given, for each module of formulas, and
    for the presets; a part is one of these, or ``others``, the modules that no page names; none are
    all. In a book with sheets, each formula stands on just one of them."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self):
        sections = dict(given=self._given, recipes=self._recipes, models=self._models)
        sections |= dict(gpus=self._gpus, links=self._links)
        sections |= {group: partial(self._group, group) for group in GROUPS}
        parts = self.arguments[0].split() if self.arguments else list(PARTS)
        if "others" in parts:
            self.env.note_reread()
            sheets, here = self.env.bookkit_formula_sheets, self.env.docname
            others = [one for one in GROUPS if sheets[one] == here and one not in parts]
            parts[parts.index("others") :] = others
        return [sections[part]() for part in parts if part in sections]

    def _section(self, ident, title, *content):
        section = nodes.section("", nodes.title(title, title), *content, ids=[ident])
        self.set_source_info(section)
        return section

    def _anchored(self, node, name):
        node["ids"].append(anchor(name))
        node["names"].append(anchor(name))  # so that a page can link to #formula-states-bytes
        self.state.document.note_explicit_target(node)
        return node

    def _given(self):
        rows = []
        for quantity in BOOK.quantities.values():
            name = self._anchored(nodes.inline("", "", _code(quantity.name)), quantity.name)
            symbol = nodes.math(quantity.symbol, quantity.symbol)
            rows.append([symbol, name, quantity.meaning, quantity.unit, _range(quantity)])
        return self._section(
            "given",
            "What is given",
            _text("Every other number in the book follows from these."),
            _table(["Symbol", "Name in code", "Meaning", "Unit", "Range"], rows, "given"),
        )

    def _group(self, group):
        of_group = [formula for formula in BOOK.formulas.values() if formula.group == group]
        title, _, rest = sys.modules[of_group[0].function.__module__].__doc__.partition(":")
        first = rest.split("\n\n")[0].strip()  # the rest of a docstring is for who reads the code
        intro = _text(first[:1].upper() + first[1:])
        entries = [self._entry(formula) for formula in of_group]
        return self._section(f"sheet-{group}", title.strip(), intro, *entries)

    def _entry(self, formula):
        links = [formula_link("", "", _code(need), name=need) for need in formula.needs]
        parts = [node for link in links for node in (nodes.Text(", "), link)][1:]
        from_these = [nodes.Text("From "), *parts, nodes.Text(". ")] if parts else []
        said = nodes.Text(f"Unit: {formula.unit}. Source: {formula.source}. Measured by ")
        facts = nodes.paragraph(
            "",
            "",
            *from_these,
            said,
            _code(formula.measured_by),
            nodes.Text("."),
            classes=["formula-facts"],
        )
        meaning = nodes.Text(f" \N{EN DASH} {formula.meaning}")
        name = nodes.paragraph("", "", _code(formula.name), meaning, classes=["formula-name"])
        entry = nodes.container(
            "", name, equation([(formula.name, {})], self.env.docname), facts, classes=["formula"]
        )
        return self._anchored(entry, formula.name)

    def _recipes(self):
        columns = {
            "Recipe": lambda recipe: recipe.name,
            "Parameter": lambda recipe: str(recipe.quantities["parameter_element_bytes"]),
            "Gradient": lambda recipe: str(recipe.quantities["gradient_element_bytes"]),
            "Master copy": lambda recipe: str(recipe.quantities["master_element_bytes"] or DASH),
            "Moments": lambda recipe: "{optimizer_moments} × {moment_element_bytes}".format(
                **recipe.quantities
            ),
            "All": lambda recipe: (
                DASH  # of the adapters' parameters, beside frozen ones
                if recipe.quantities.get("adapter_rank")
                else compute(f'bytes_per_parameter(recipe="{recipe.name}") exact')[0]
            ),
            "Measured": lambda recipe: "yes" if recipe.verified else "not yet",
            "What it is": lambda recipe: (
                f"{recipe.note} ({recipe.source}, read on {recipe.read_on})"
            ),
        }
        proof = nodes.paragraph("", "", nodes.Text("Measured by "))
        tests = dict.fromkeys(recipe.verified for recipe in RECIPES.values() if recipe.verified)
        for number, test in enumerate(tests):
            proof += [nodes.Text(", ")] * bool(number) + [_code(test)]
        others = any(not recipe.verified for recipe in RECIPES.values())
        proof += nodes.Text(". The others are as their sources state them." if others else ".")
        intro = "Bytes for one parameter, by recipe."
        return self._presets("Recipes", intro, RECIPES, columns, range(1, 6), proof)

    def _models(self):
        shape = {
            "Layers": "layers",
            "Hidden size": "hidden",
            "Heads": "heads",
            "Key-value heads": "key_value_heads",
            "MLP size": "feed_forward",
            "Vocabulary": "vocabulary",
        }
        columns = {
            "Model": lambda model: model.name,
            **{head: partial(_exact, name=name) for head, name in shape.items()},
            "Parameters": lambda model: compute(f'parameters(model="{model.name}") exact')[0],
            "Shape from": lambda model: f"{model.source}; read on {model.read_on}",
        }
        intro = "Parameters are computed from the shape, with the formulas above."
        return self._presets("Models", intro, MODELS, columns, range(1, 8))

    def _gpus(self):
        def memory(gpu, unit):
            return format_as(gpu.quantities["gpu_memory_bytes"], unit).split(" ")[0]

        columns = {
            "GPU": lambda gpu: gpu.name,
            "Memory, GB": partial(memory, unit="GB"),
            "The same, GiB": partial(memory, unit="GiB"),
            "Dense TFLOP/s": partial(_scaled, name="flops_per_second", size=1e12),
            "In 8 bits": partial(_scaled, name="fp8_flops_per_second", size=1e12),
            "In 4 bits": partial(_scaled, name="fp4_flops_per_second", size=1e12),
            "Bandwidth, TB/s": partial(_scaled, name="memory_bytes_per_second", size=1e12),
            "C2C, GB/s": partial(_scaled, name="chip_to_chip_bytes_per_second", size=1e9),
            "Source, and how it was read": lambda gpu: (
                f"{gpu.source}. {gpu.verified[:1].upper()}{gpu.verified[1:]}. Read on"
                f" {gpu.read_on}."
            ),
        }
        intro = (
            "Memory is what a card reports to a program; the rest are figures of datasheets. Dense"
            " TFLOP/s are in bf16, or in fp16 on a GPU without bf16. A dash: the GPU has no such"
            " unit, or no source was read. C2C joins a GPU and the CPU in its package; its rate is"
            " one way."
        )
        return self._presets("GPUs", intro, GPUS, columns, range(1, 8))

    def _links(self):
        columns = {
            "Link": lambda link: link.name,
            "Each way, GB/s": partial(_scaled, name="link_bytes_per_second", size=1e9),
            "Latency, \N{MICRO SIGN}s": lambda link: format_as(
                link.quantities["latency_seconds"] * 1e6, "number"
            ),
            "Source": lambda link: f"{link.source}. Read on {link.read_on}.",
        }
        intro = (
            "Bandwidths that vendors print for one direction, and the latency that NCCL assumes;"
            " neither is measured here."
        )
        return self._presets("Links", intro, LINKS, columns, range(1, 3))

    def _presets(self, title, intro, presets, columns, numeric, *after):
        """A section with a table: `columns` are head -> the text of a preset."""
        rows = [[text(preset) for text in columns.values()] for preset in presets.values()]
        shown = _table(list(columns), rows, title.lower(), numeric)
        return self._section(f"sheet-{title.lower()}", title, _text(intro), shown, *after)


def _exact(preset, name):
    return f"{preset.quantities[name]:,}"


def _scaled(preset, name, size):
    has = name in preset.quantities
    return format_as(preset.quantities[name] / size, "number") if has else DASH


def _code(text):
    return code_name(text, text)


def _text(text):
    return nodes.paragraph(text, text)


def _range(quantity):
    if (quantity.least, quantity.most) == (0, 1) and quantity.whole:
        return "0 or 1"
    low = f"{'above' if quantity.above else 'from'} {show(quantity.least)}"
    return low if quantity.most in (EXACT_LIMIT, math.inf) else f"{low} to {show(quantity.most)}"


def _table(heads, rows, name, numeric=()):
    """A wide table with a class for the style sheet."""
    made = node_table(heads, rows, numeric)
    made["classes"] = [f"sheet-{name}"]
    return nodes.container("", made, classes=["wide"])


def _find_sheets(app, env, docnames):
    """Note the page of each part, which pages' directives name; Sphinx may read these later."""
    sheets, known = {}, {*PARTS, "others"}
    for page in sorted(env.found_docs):
        source = Path(env.doc2path(page))
        for asked in SHEET.findall(source.read_text("utf-8")) if source.suffix == ".md" else ():
            for part in asked.split() or PARTS:
                if part not in known or sheets.setdefault(part, page) != page:
                    said = f"{part} is unknown, or on another formula sheet; there are "
                    warn(page, "sheet", f"{said}{', '.join(PARTS)}.")
    if "others" in sheets:
        sheets = dict.fromkeys(GROUPS, sheets["others"]) | sheets
    if sheets and (forgotten := {"given", *GROUPS} - set(sheets)):
        warn(None, "sheet", f"no formula sheet prints {', '.join(sorted(forgotten))}")
    env.bookkit_formula_sheets = sheets


def setup(app):
    app.add_directive("formula-sheet", FormulaSheetDirective)
    app.connect("env-before-read-docs", _find_sheets)
