"""Numbers that only a GPU can show, out of the recordings in ``measured/``.

    {recorded}`step.peak optimizer=foreach`          536,550,616 bytes on NVIDIA H200, 2026-11-21
    {recorded}`rounded step.peak optimizer=foreach`  537 MB

    ```{recorded} states.optimizer step.peak
    What to look at.
    ```

    ```{race} zero_race
    What raced, and what to look at.
    ```

    ```{recordings}
    ```

    ```{virtual} races
    What raced in virtual time.
    ```

The role is one number, or the plain words that there is none yet. The directive is a *Measured*
box: a table of the rows of these names in every recording on a GPU, beside what the formula says.
``{race}`` is such a box of times and peaks over PyTorch's, which need no GPU. A box without a
recording is left out with its words. ``{virtual}`` is a box of steps in virtual time: `races`
beside PyTorch's, `published`, or `rungs` beside those of a recorded GPU. ``{recordings}`` lists the
recordings, and the rows that pages ask for and no recording has. ``bookkit/build.py`` reads pages
again when ``measured/`` changed.
"""

import re
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import median

from docutils import nodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

from bookkit.boxes import new_box
from bookkit.cards import link_to, node_table, warn
from coursekit.recordings.recordings import InvalidRecording, read_all, recorded
from coursekit.recordings.virtual_errors import how_near
from coursekit.show.format import STYLE_OF_UNIT, format_as

ASKED = re.compile(r"^(?:`{3,}|:{3,})\{recorded\} (.+)$|\{recorded\}`([^`]+)`", re.MULTILINE)
ROUNDED = "rounded "
WAITED = "nanotron on H100, others"  # published runs that waited for their hosts and between nodes


def _recordings(env, location, kind="gpu"):
    """The recordings on such devices beside the book's pages, newest first; a damaged file is a
    warning that names it."""
    try:
        return [
            found
            for found in read_all(Path(env.srcdir) / "measured")
            if found.hardware.kind == kind
        ]
    except InvalidRecording as error:
        warn(location, "recorded", f"measured/{error}")
        return []


class RecordedRole(SphinxRole):
    """One recorded number: a row's name, then words such as optimizer=foreach that its case must
    have; a word without = belongs to the value before it. `rounded` before the name leaves the
    device out, too, where the page has named it."""

    def run(self):
        name, *case = self.text.removeprefix(ROUNDED).split()
        pairs = re.findall(r"(\w+)=(.*?)(?=\s+\w+=|$)", " ".join(case))
        given = dict(pairs)
        if case and "=" not in case[0]:
            said = f"{self.text!r}: a row's name, then words such as optimizer=foreach"
            warn(self.get_location(), "recorded", said)
        found = _recordings(self.env, self.get_location())
        rows = [row for recording in found for row in recording.find(name, **given)]
        if rows and self.text.startswith(ROUNDED):
            value, unit = rows[0].value, rows[0].unit
            of_bytes = unit == "bytes"  # decimal, as in sentences; tables have binary ones
            text = format_as(value, "decimal bytes") if of_bytes else _value(value, unit)
            return [nodes.inline(self.rawtext, text)], []
        return [nodes.inline(self.rawtext, recorded(found, name, **given))], []


class MeasuredDirective(SphinxDirective):
    """A *Measured* box; its content says what to look at. Nothing where nothing is `shown()`."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        if not (shown := self.shown()):
            return []
        box = new_box("measured")
        self.set_source_info(box)
        self.state.nested_parse(self.content, self.content_offset, box)
        box += shown
        return [box]


class RecordedDirective(MeasuredDirective):
    """The rows of these names, and among words such as optimizer=loop with such a case."""

    def shown(self):
        words = self.arguments[0].split()
        names = [word for word in words if "=" not in word]
        given = {tuple(word.split("=", 1)) for word in words if "=" in word}
        tables = []
        for recording in _recordings(self.env, self.get_location()):
            rows = [
                row
                for row in recording.sound
                if row.name in names
                and given <= {(name, str(value)) for name, value in row.case.items()}
            ]
            if rows:
                shared = _words(_shared_case(rows))
                after = f"; in all rows {shared}:" if shared else ":"
                tables += [_made_by(recording, after), _table(rows)]
        return tables


class RaceDirective(MeasuredDirective):
    """Step time and peak of shardlab over PyTorch's, from the newest recording of `python -m bench
    --record` that has both; and step time over a step without the technique, if it has that."""

    def shown(self):
        group = self.arguments[0]
        races = (
            found
            for found in _recordings(self.env, self.get_location(), "cpu")
            if found.find(f"{group}.step") and found.find(f"{group}.peak")
        )
        if (found := next(races, None)) is None:
            return []
        cells = []
        for row in found.find(f"{group}.step"):
            (peak,) = found.find(f"{group}.peak", what=row.case["what"])
            same = f"{row.case['identical_low']:.2f} to {row.case['identical_high']:.2f}"
            cells.append([row.case["what"], f"{row.value:.2f}", same, f"{peak.value:.2f}"])
        heads = ["shardlab over PyTorch", "Step time", "shardlab over itself", "Peak bytes"]
        tables = [node_table(heads, cells, numeric=range(1, 4))]
        if over := found.find(f"{group}.overhead"):
            cells = [
                [row.case["what"], f"{row.value - 1:+.0%}", f"{row.case['by_operations'] - 1:+.0%}"]
                for row in over
            ]
            heads = ["shardlab over a step that keeps everything", "Step time"]
            heads.append("Operations, computed")
            tables.append(node_table(heads, cells, numeric=(1, 2)))
        said = _made_by(found, ". ")
        said += link_to("How versions race.", "races", self.env.docname, "ref", sure=False)
        return [*tables, said]


class VirtualDirective(MeasuredDirective):
    """Steps in virtual time, from the newest recording of `python -m bench.virtual`: techniques
    beside PyTorch's own, or steps beside published or recorded ones."""

    def shown(self):
        tables = dict(races=_virtual_races, published=_virtual_published, rungs=_virtual_rungs)
        tables["mixes"] = partial(_virtual_races, shared=True)
        found = _recordings(self.env, self.get_location(), "virtual")
        if not found:
            return []
        table, said = tables[self.arguments[0]](found[0])
        said = f"{said}Virtual: {found[0].hardware.device}, torch {found[0].versions['torch']}, by "
        by = nodes.literal("", found[0].command)
        return [table, nodes.paragraph("", "", nodes.Text(said), by)]


def _made_by(recording, after):
    """A paragraph with the machine, the version and the command of a recording."""
    said = f"{recording.label[:1].upper()}{recording.label[1:]}, torch"
    said = nodes.Text(f"{said} {recording.versions['torch']}, by ")
    return nodes.paragraph("", "", said, nodes.literal("", recording.command), nodes.Text(after))


def _virtual_races(recording, shared=False):
    """(a table of whole models, each beside the fastest of PyTorch's, how near its clock is); or of
    ways to share a sequence"""
    cells, before, many = [], None, 0
    for row in recording.find("virtual.step", implementation="shardlab"):
        technique, model, gpus = (row.case[name] for name in ("technique", "model", "gpus"))
        if model.startswith("two layers of L" if shared else "two layers") != shared:
            continue
        of = dict(technique=technique, model=model, gpus=gpus)
        steps, waits, peaks, ran_out = (
            {one.case["implementation"]: one.value for one in recording.find(name, **of)}
            for name in ("virtual.step", "virtual.exposed", "virtual.peak", "virtual.out_of_memory")
        )
        many += len(ran_out)
        peers = [name for name in steps if name != "shardlab"]
        best = min(peers, key=steps.get) if peers else None
        shares = {name: waits[name] / steps[name] for name in steps}
        values = [
            f"{scale * each['shardlab']:,.1f}"
            + (f"\N{NO-BREAK SPACE}({scale * each[best]:,.1f})" if best else "")
            for scale, each in ((1000, steps), (100, shares), (1e-9, peaks))
        ]
        ratio = f"{steps['shardlab'] / steps[best]:.2f}" if best else ""
        cells.append(
            [technique if technique != before else "", model.replace(" ", "\N{NO-BREAK SPACE}")]
            + [f"{gpus}", values[0], ratio, *values[1:], best or "none fits"]
        )
        before = technique
    heads = ["", "", "GPUs", "Step, ms", "Ratio", "Waits, %", "Peak, GB", "PyTorch's best"]
    if shared:  # on the same GPUs
        heads, *cells = (
            [one[0].split(", ")[-1], *one[3:]] for one in ([*heads[:-1], "Fastest peer"], *cells)
        )
        return node_table(heads, cells, numeric=range(1, 5)), ""
    said = f"{many} of PyTorch's steps ran out of memory. " if many else ""
    said += f"{how_near('FSDP on H100', 'Megatron-LM on H100')} "
    return node_table(heads, cells, numeric=range(2, 7)), said


def _virtual_published(recording):
    """(a table of classes, how many of the steps held out are near in words)"""
    ratios = {}  # of a class, fitted or held out
    for row in recording.find("virtual.published"):
        of_class = ratios.setdefault(row.case["speed"], ([], []))
        of_class[row.case["fitted"]].append(row.value)
    cells, of_all = [], [0, 0]
    for speed, (held, fitted) in ratios.items():
        near = sum(0.85 <= ratio <= 1.15 for ratio in held)
        if speed == WAITED:
            said = f"{of_all[0]} of {of_all[1]} held-out steps are within 15%, "
        of_all = [of_all[0] + near, of_all[1] + len(held)]
        span = f"{min(held):.2f} to {max(held):.2f}"
        cells.append([speed, str(len(held)), str(near), f"{median(held):.2f}", span])
        cells[-1] += [str(len(fitted)), f"{median(fitted):.2f}"]
    said += f"and with those of the last line {of_all[0]} of {of_all[1]}. "
    heads = ["Virtual over published", "Held out", "Within 15%", "Median", "Lowest and highest"]
    heads += ["Fitted", "Median"]
    return node_table(heads, cells, numeric=range(1, 7)), said


def _virtual_rungs(recording):
    """(a table of the rungs of one GPU, how near those are that nothing was fitted to)"""
    found = recording.find("virtual.rung")
    cells = [
        [
            row.case["rung"],
            "fitted" if row.case["fitted"] else "held out",
            f"{1000 * row.case['recorded_seconds']:.1f} ms",
            f"{row.case['gpu_busy']:.0%}",
            f"{1000 * row.value * row.case['recorded_seconds']:.1f} ms",
            f"{row.value:.2f}",
        ]
        for row in found
    ]
    heads = ["", "", "Recorded", "GPU busy", "Virtual", "Virtual over recorded"]
    return node_table(heads, cells, numeric=range(2, 6)), f"{how_near()} "


def near(docname, *classes):
    """The sentence of how far virtual seconds are from others, with a link to the clock's page."""
    before, clock, after = how_near(*classes).partition("this clock")
    return [nodes.Text(before), link_to(clock, "virtual-races", docname, "ref"), nodes.Text(after)]


def _shared_case(rows):
    """The part of the case that all rows have; nothing of a single row."""
    if len(rows) == 1:
        return {}
    first, *others = (row.case.items() for row in rows)
    return {name: value for name, value in first if all((name, value) in case for case in others)}


def _words(case):
    """A case in words: a name beside numbers, which would not say what they count; a ratio is over
    its peer."""
    words = []
    for name, value in case.items():
        name = "bytes" if name == "nbytes" else name.replace("_", " ")
        if isinstance(value, str):
            words.append(f"over {value}" if name == "peer" else value)
        elif not isinstance(value, bool):
            words.append(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.3g}")
        elif value:
            words.append(name)
    return ", ".join(words)


def _table(rows):
    """A table of names, the formulas' values, and the recorded values; the last column has the
    difference. Without formulas two columns."""
    shared, predicted = _shared_case(rows), any(row.predicted is not None for row in rows)
    cells = []
    for row in rows:
        case = _words({name: row.case[name] for name in row.case if name not in shared})
        name = row.name.removesuffix(".row").replace(".", ", ").replace("_", " ")
        formula = rest = ""
        if row.predicted is not None:
            formula = _value(row.predicted, row.unit)
            rest = f"{row.value - row.predicted:+,} {row.unit}"
            rest = rest if row.value != row.predicted else "equal"
        found = [f"{name} ({case})" if case else name, _value(row.value, row.unit)]
        cells.append([found[0], formula, found[1], rest] if predicted else found)
    heads = ["What", "Formula", "Recorded", "Rest"] if predicted else ["What", "Recorded"]
    return node_table(heads, cells, numeric=range(1, len(heads)))


def _value(value, unit):
    written = format_as(value, STYLE_OF_UNIT.get(unit, "number"))
    return written if unit in STYLE_OF_UNIT or unit in ("count", "ratio") else f"{written} {unit}"


class RecordingsDirective(SphinxDirective):
    """Every recording on a GPU: device, date, versions, command, number of sound rows. Then the
    rows that pages ask for and no recording has."""

    def run(self):
        found = _recordings(self.env, self.get_location())
        missing = self._missing(found)
        said = [nodes.paragraph("", "Nothing in this edition has been recorded on a GPU.")]
        if found:
            rows = [
                [
                    f"{recording.hardware.count} × {recording.hardware.device}",
                    recording.date,
                    ", ".join(f"{name} {version}" for name, version in recording.versions.items()),
                    recording.command,
                    str(len(recording.sound)),
                ]
                for recording in found
            ]
            heads = ["Hardware", "Date", "Versions", "Command", "Rows"]
            said = [node_table(heads, rows, numeric=[4])]
        if missing:
            awaited = "Pages will show these measurements once a GPU has made them: "
            said.append(nodes.paragraph("", f"{awaited}{', '.join(missing)}."))
        return said

    def _missing(self, recordings):
        """Names of rows that a page asks for and that no recording on a GPU has."""
        there = {row.name for recording in recordings for row in recording.sound}
        asked = set()
        for page in self.env.found_docs:
            path = Path(self.env.doc2path(page))
            if path.suffix == ".md":
                for box, role in ASKED.findall(path.read_text(encoding="utf-8")):
                    words = (box or role.removeprefix(ROUNDED)).split()
                    asked.update(takewhile(lambda word: "=" not in word, words))
        return sorted(asked - there)


def setup(app):
    app.add_role("recorded", RecordedRole())
    app.add_directive("recorded", RecordedDirective)
    app.add_directive("race", RaceDirective)
    app.add_directive("virtual", VirtualDirective)
    app.add_directive("recordings", RecordingsDirective)
