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


class FormulaSheetDirective(SphinxDirective):
    """``{formula-sheet} [part ...]``: sections for what is given, for each module of formulas, and
    for the presets; a part is one of these, none are all. In a book with sheets, each formula
    stands on just one of them: what a sheet forgets is a warning."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self):
        groups = list(dict.fromkeys(formula.group for formula in BOOK.formulas.values()))
        sections = {
            "given": self._given,
            **{group: partial(self._group, group) for group in groups},
            "recipes": self._recipes,
            "models": self._models,
            "gpus": self._gpus,
            "links": self._links,
        }
        parts = self.arguments[0].split() if self.arguments else list(sections)
        if "others" in parts:
            elsewhere = {*parts, *self._parts_of_other_pages()}
            parts[parts.index("others") :] = [group for group in groups if group not in elsewhere]
        unknown = [part for part in parts if part not in sections]
        if unknown:
            self._warn(
                f"no part of the formula sheet is named {', '.join(unknown)}; there are"
                f" {', '.join(sections)}"
            )
            return []
        printed = [
            *(BOOK.quantities if "given" in parts else ()),
            *(name for name, formula in BOOK.formulas.items() if formula.group in parts),
        ]
        sheets = _sheets(self.env)
        twice = [name for name in printed if sheets.get(name, self.env.docname) != self.env.docname]
        if twice:
            self._warn(f"{twice[0]} is on the formula sheet {sheets[twice[0]]} already")
        sheets.update(dict.fromkeys(printed, self.env.docname))
        return [sections[part]() for part in parts]

    def _parts_of_other_pages(self):
        """The parts that the other pages' directives name, read from their sources: Sphinx may read
        those pages later than this one."""
        self.env.note_reread()
        for page in self.env.found_docs - {self.env.docname}:
            source = Path(self.env.doc2path(page))
            if source.suffix == ".md":
                for found in re.findall(
                    r"(?m)^`{3,}\{formula-sheet\} (.+)$", source.read_text("utf-8")
                ):
                    yield from found.split()

    def _warn(self, sentence):
        warn(self.get_location(), "sheet", sentence)

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


def _sheets(env):
    """Name of a formula or quantity -> the page whose sheet prints it."""
    if not hasattr(env, "bookkit_formula_sheets"):
        env.bookkit_formula_sheets = {}
    return env.bookkit_formula_sheets


def _forget_sheet(app, env, docname):
    env.bookkit_formula_sheets = {
        name: sheet for name, sheet in _sheets(env).items() if sheet != docname
    }


def _forget_sheets(app, env, docnames):
    """All that are about to be read, at once: a formula that moved from one sheet to another stands
    on just one of them, whichever is read first."""
    for docname in docnames:
        _forget_sheet(app, env, docname)


def _merge_sheets(app, env, docnames, other):
    _sheets(env).update(
        {name: sheet for name, sheet in _sheets(other).items() if sheet in docnames}
    )


def _check_sheets(app, env):
    forgotten = [name for name in (*BOOK.quantities, *BOOK.formulas) if name not in _sheets(env)]
    if _sheets(env) and forgotten:
        first = next(iter(_sheets(env).values()))
        warn(first, "sheet", f"no formula sheet prints {', '.join(forgotten)}")


def setup(app):
    app.add_directive("formula-sheet", FormulaSheetDirective)
    app.connect("env-purge-doc", _forget_sheet)
    app.connect("env-before-read-docs", _forget_sheets)
    app.connect("env-merge-info", _merge_sheets)
    app.connect("env-check-consistency", _check_sheets)
