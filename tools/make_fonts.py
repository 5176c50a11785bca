"""For authors: make the fonts in src/bookkit/static/fonts from the npm packages they come from.

    npm pack source-serif@4.5.1 source-sans@3.52.0 source-code-pro@2.42.0
    @fontsource/stix-two-math@5.3.0
    python tools/make_fonts.py FOLDER     # the folder with the four .tgz files; needs fonttools and
                                          # brotli

Each font keeps the characters the book can use, and the mathematics font its MATH table, from which
the browser takes the sizes of brackets, the place of scripts and the thickness of a fraction's
line. All are under the SIL Open Font License, whose text lies beside them. It reserves the name
"Source" for Adobe's unchanged fonts, so this book's have another.
"""

import argparse
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from fontTools.varLib import instancer

FONTS = Path(__file__).resolve().parents[1] / "src" / "bookkit" / "static" / "fonts"

LATIN = [*range(0x20, 0x7F), *range(0xA0, 0x100), *map(ord, "ıŁłŒœŠšŽžŸćčęąńřůőű")]
PUNCTUATION = [*map(ord, "–—‘’‚“”„…•‹›′″·†‡"), 0x2009, 0x200A, 0x202F, 0x2011]
SIGNS = [*map(ord, "×÷−±≤≥≈≠→←↑↓∞√€™µ°⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄½¼¾✓")]
TEXT = LATIN + PUNCTUATION + SIGNS
BOXES = [*map(ord, "─│┌┐└┘├┤┬┴┼█▏▎▍▌▋▊▉░▒")]

GREEK = [*range(0x391, 0x3AA), *range(0x3B1, 0x3CA), 0x3D1, 0x3D5, 0x3F5]
LETTERS = [
    *range(0x1D434, 0x1D468),  # italic Latin
    *range(0x1D400, 0x1D434),  # bold Latin
    *range(0x1D6E2, 0x1D71C),  # italic Greek
    *range(0x1D6FC, 0x1D71C),
    *range(0x1D538, 0x1D56C),
    *map(ord, "ℂℍℕℙℚℝℤ"),  # blackboard
    *range(0x1D49C, 0x1D4B6),
    *map(ord, "ℬℰℱℋℐℒℳℛ"),  # script capitals
    *range(0x1D7CE, 0x1D7D8),
    *map(ord, "ℎℓ"),
]
OPERATORS = [
    *map(
        ord,
        "⋅×÷±∓∗⋆∘∙⊕⊗⊙∪∩∖∧∨¬≤≥≠≪≫≈∼≃≡∝∈∉∋⊂⊆⊃⊇∣∥⊥≔→←↔↦⇒⟹⇐⇔⟺⟶↑↓∑∏∐⋃⋂⨁∫∬∮√∞∂∇∅∀∃⊤⋯⋮⋱…−′″‴"
        "⌈⌉⌊⌋⟨⟩‖|⏞⏟⏜⏝¯ˆˇ˜˙¨^~_≮≯⊄≢°",
    )
]
MATHEMATICS = [
    *range(0x20, 0x7F),
    0xA0,
    *GREEK,
    *LETTERS,
    *OPERATORS,
    0x302,
    0x303,
    0x304,
    0x305,
    0x307,
    0x308,
    0x20D7,
]

SERIF, SANS, CODE, STIX = (
    "source-serif-4.5.1",
    "source-sans-3.52.0",
    "source-code-pro-2.42.0",
    "fontsource-stix-two-math-5.3.0",
)


@dataclass(frozen=True)
class Source:
    """Where a font comes from; ``axes`` limits a variable font, ``name`` is the family it is
    given."""

    package: str
    path: str
    characters: list
    name: str
    axes: dict = field(default_factory=dict)


SOURCES = {
    "book-serif-400.woff2": Source(SERIF, "TTF/SourceSerif4-Regular.ttf", TEXT, "Book Serif"),
    "book-serif-400-italic.woff2": Source(SERIF, "TTF/SourceSerif4-It.ttf", TEXT, "Book Serif"),
    "book-serif-600.woff2": Source(SERIF, "TTF/SourceSerif4-Semibold.ttf", TEXT, "Book Serif"),
    "book-sans.woff2": Source(
        SANS, "VF/SourceSans3VF-Upright.otf", TEXT, "Book Sans", {"wght": (400, 700)}
    ),
    "book-code.woff2": Source(
        CODE, "VF/SourceCodeVF-Upright.otf", TEXT + BOXES, "Book Code", {"wght": (400, 600)}
    ),
    "stix-two-math.woff2": Source(
        STIX, "files/stix-two-math-latin-400-normal.woff2", MATHEMATICS, "STIX Two Math"
    ),
}
LICENCES = {
    "book-serif-LICENSE.txt": (SERIF, "LICENSE.md"),
    "book-sans-LICENSE.txt": (SANS, "LICENSE.md"),
    "book-code-LICENSE.txt": (CODE, "LICENSE.md"),
    "stix-two-math-LICENSE.txt": (STIX, "LICENSE"),
}


def member(folder, package, path):
    """Bytes of one file of an npm package."""
    with tarfile.open(folder / f"{package}.tgz") as archive:
        return archive.extractfile(f"package/{path}").read()


def subset(content, source):
    """A woff2 font with only the characters of ``source`` and what its layout rules make of
    them."""
    font = TTFont(io.BytesIO(content))
    if source.axes:
        font = instancer.instantiateVariableFont(font, source.axes)
    options = Options()
    options.flavor = "woff2"
    options.layout_features = [
        "kern",
        "liga",
        "ccmp",
        "locl",
        "mark",
        "mkmk",
        "tnum",
        "lnum",
        "zero",
        "ssty",
    ]
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 13, 14]
    options.notdef_outline = True
    options.hinting = False
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=source.characters)
    subsetter.subset(font)
    for record in font["name"].names:
        if record.nameID in {1, 3, 4, 6, 16}:
            record.string = source.name.replace(" ", "") if record.nameID == 6 else source.name
    font.flavor = "woff2"
    target = io.BytesIO()
    font.save(target)
    return target.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    FONTS.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        content = subset(member(folder, source.package, source.path), source)
        (FONTS / name).write_bytes(content)
        print(f"{name:32} {len(content):8,} bytes")
    for name, (package, path) in LICENCES.items():
        (FONTS / name).write_bytes(member(folder, package, path))


if __name__ == "__main__":
    main()
