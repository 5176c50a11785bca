"""Code has one of two widths."""

from docutils import nodes

from bookkit.look import COLUMN_LETTERS, widen_code


def test_long_code_is_wide_and_short_code_is_not():
    """Must catch: the width of the longest line; a caption left behind at the column's width; code
    in a box that grows out of the box."""
    short, long = "x" * COLUMN_LETTERS, "x\n" + "x" * (COLUMN_LETTERS + 1)
    section, box = nodes.section(), nodes.container(classes=["admonition"])
    wrapper = nodes.container(classes=["literal-block-wrapper"])
    cell, cell_input = nodes.container(classes=["cell"]), nodes.container(classes=["cell_input"])
    section += [nodes.literal_block("", short), nodes.literal_block("", long), box, wrapper, cell]
    for place in (box, wrapper, cell_input):
        place += nodes.literal_block("", long)
    cell += cell_input
    widen_code(section)
    wide = [found for found in section.findall(nodes.Element) if "wide" in found.get("classes", ())]
    assert wide == [section[1], wrapper, cell_input]
