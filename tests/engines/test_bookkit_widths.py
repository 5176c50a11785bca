"""Code and tables have one of two widths."""

from docutils import nodes

from bookkit.look import COLUMN_LETTERS, mend_tables, widen_code


def test_long_code_is_wide_and_short_code_is_not():
    """Must catch: the width of the longest line; a caption left behind at the column's width; code
    in a box that grows out of the box; code cut in a fold, which has no box."""
    short, long = "x" * COLUMN_LETTERS, "x\n" + "x" * (COLUMN_LETTERS + 1)
    section, box = nodes.section(), nodes.container(classes=["admonition"])
    wrapper = nodes.container(classes=["literal-block-wrapper"])
    cell, cell_input = nodes.container(classes=["cell"]), nodes.container(classes=["cell_input"])
    section += [nodes.literal_block("", short), nodes.paragraph(), nodes.literal_block("", long)]
    section += [box, wrapper, nodes.paragraph(), cell]
    fold, body = nodes.container(), nodes.container(design_component="dropdown-body")
    section += [nodes.paragraph(), fold]
    fold += body
    for place in (box, wrapper, cell_input, body):
        place += nodes.literal_block("", long)
    cell += cell_input
    widen_code(section)
    wide = [found for found in section.findall(nodes.Element) if "wide" in found.get("classes", ())]
    assert wide == [section[2], wrapper, cell_input, body[0]]


def test_code_beside_code_has_its_width():
    """Must catch: blocks of 584 and of 860 pixels below one another."""
    short, long = "x" * COLUMN_LETTERS, "x" * (COLUMN_LETTERS + 1)
    section = nodes.section()
    for text in (long, short, "", short, short):
        section += nodes.literal_block("", text) if text else nodes.paragraph()
    widen_code(section)
    assert ["wide" in block["classes"] for block in section] == [True, True, False, False, False]


def table_of(columns):
    """A table with a head of one cell and so many columns."""
    group = nodes.tgroup(cols=columns)
    group += [nodes.colspec() for _ in range(columns)]
    group += nodes.thead("", nodes.row("", nodes.entry("", nodes.paragraph("", "with T = 1,024"))))
    return nodes.table("", group)


def test_a_table_of_five_columns_is_wide():
    """Must catch: five columns squeezed into the column; a table that grows out of its box; a head
    broken at its equals sign."""
    box, answer = nodes.container(classes=["box"]), nodes.container(classes=["answer"])
    section = nodes.section("", table_of(4), table_of(5), box, answer)
    box += table_of(5)
    answer += table_of(6)
    mend_tables(section)
    wide = [found for found in section.findall(nodes.Element) if "wide" in found.get("classes", ())]
    assert wide == [section[1], answer[0]]
    assert all(head.astext() == "with T\u00a0=\u00a01,024" for head in section.findall(nodes.thead))


def test_every_head_says_something():
    """Must catch: an empty head, which axe calls a minor fault and a reader who listens does not
    understand."""
    table = table_of(2)
    head = next(table.findall(nodes.row))
    head += [nodes.entry(), nodes.entry("", nodes.paragraph())]
    head += nodes.entry("", nodes.paragraph("", "", nodes.math("", "t")))
    mend_tables(nodes.section("", table))
    assert [entry.astext() for entry in head][1:] == ["Row", "Row", "t"]
