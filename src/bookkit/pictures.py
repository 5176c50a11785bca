"""The ``{picture}`` directive: a still picture that Python draws from formulas or data, with its
caption.

    ```{picture} zero-stages
    **Figure 1.** What a rank keeps. The first step is the largest.
    ```

The name is one of ``PICTURES``, name -> function that returns SVG, in the module ``pictures`` of
any topic (``coursekit/show/drawing.py`` has the pencil). A picture is drawn while the book is
built; its looks are classes, and the style sheet, written from the palettes, stands on pages with
pictures alone.
"""

from bookkit.cards import CardDirective, add_files, add_static, classed
from coursekit import topics
from coursekit.show.drawing import COLOUR_WORDS, LETTER_UNITS, LOOKS
from coursekit.show.palette import MEMORY

SHEET = "pictures.css"


def pictures():
    """Name -> the function that draws it, of all topics."""
    found = {}
    for module in topics.modules("pictures"):
        twice = found.keys() & module.PICTURES.keys()
        if twice:
            raise ValueError(f"{module.__name__}: {', '.join(twice)} is another topic's picture.")
        found.update(module.PICTURES)
    return found


def style_sheet():
    """The looks, as CSS."""
    rules = [
        "svg{display:block;width:100%;max-width:31rem;height:auto;margin:0 auto;"
        f"fill:currentColor;font-size:{LETTER_UNITS}px;"
        "font-variant-numeric:tabular-nums lining-nums}"
    ]
    memory = {name.replace("_", "-") for name in MEMORY}
    # a line does not fill, whatever its colour, and has the colour that outlines
    rules.append(f".line{{{LOOKS['line']}}}")
    for name in COLOUR_WORDS:
        colour = f"--{'memory' if name in memory else 'timeline'}-{name}"
        rules.append(f".{name}{{fill:var({colour});stroke:var({colour}-line)}}")
    rules += [
        f".{name}{{{declarations}}}"
        for name, declarations in LOOKS.items()
        if declarations and name != "line"
    ]
    rules.append("text{stroke:none}")
    return "".join(f".picture {rule}\n" for rule in rules)


class PictureDirective(CardDirective):
    has_content = True

    def make(self):
        self.assert_has_content()
        known = pictures()
        return self.figure(known[self.argument(known)](), "picture")


def setup(app):
    app.add_directive("picture", PictureDirective)
    add_static(app, f"_static/{SHEET}", style_sheet)
    add_files(app, classed("picture"), {SHEET: 803})
