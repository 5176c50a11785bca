"""The palette keeps its promises: seen against both pages, told apart by everyone, the same in
figures and pages."""

import itertools
import math
import re

import pytest
from told import cells
from wcag import contrast, linear

from coursekit.show.palette import MEMORY, PAGE, TIMELINE

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISION = {
    name: [list(map(float, row.split())) for row in rows.split(", ")]
    for name, rows in cells("test_palette::VISION")
}
SWATCHES = {f"memory {name}": swatch for name, swatch in MEMORY.items()}
SWATCHES |= {f"timeline {name}": swatch for name, swatch in TIMELINE.items()}


def lab(rgb):
    """CIE L*a*b* of linear sRGB, D65."""
    r, g, b = rgb
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one, other, vision):
    """How far apart two colours look: the distance in L*a*b* (2 can just be told apart side by
    side)."""

    def seen(colour):
        return [min(1, max(0, sum(w * c for w, c in zip(row, linear(colour))))) for row in vision]

    return math.dist(lab(seen(one)), lab(seen(other)))


@pytest.mark.parametrize("name", SWATCHES)
def test_lines_are_seen_on_both_pages(name):
    """Mutation: take the fill #e69f00 of the optimizer for its line: 2.2:1 on the light page."""
    assert contrast(SWATCHES[name].line, PAGE.light) >= 3
    assert contrast(SWATCHES[name].line, PAGE.dark) >= 3


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [MEMORY, TIMELINE], ids=["memory", "timeline"])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_fills_are_told_apart(palette, vision, mode):
    """Mutation: give the activations the gathered parameters' blue, or use a red and a green of one
    lightness."""
    for one, other in itertools.combinations(palette, 2):
        apart = difference(
            getattr(palette[one], mode), getattr(palette[other], mode), VISION[vision]
        )
        assert apart >= 15, f"{one} and {other} are {apart:.1f} apart"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_colour_means_bytes_or_seconds(mode):
    """Must catch: the blue of parameters for forward, or a shade of it."""
    for (memory, one), (time, other) in itertools.product(MEMORY.items(), TIMELINE.items()):
        for this, that in ((one.light, getattr(other, mode)), (one.line, other.line)):
            apart = difference(this, that, VISION["full colour"])
            assert apart >= 20, f"{memory} and {time} are {apart:.1f} apart"


def test_pages_have_every_colour_once_for_each_mode():
    """Mutation: write the light fills for the dark page; forget that weight_gradient needs a hyphen
    in CSS."""
    from coursekit.show.palette import palette_css

    light, dark = palette_css().split("html[data-theme=dark]")
    for css, mode in ((light, "light"), (dark, "dark")):
        variables = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", css))
        assert variables["--page"] == getattr(PAGE, mode)
        for kind, palette in (("memory", MEMORY), ("timeline", TIMELINE)):
            for name, swatch in palette.items():
                variable = f"--{kind}-{name.replace('_', '-')}"
                assert variables[variable] == getattr(swatch, mode)
                assert variables[f"{variable}-line"] == swatch.line
