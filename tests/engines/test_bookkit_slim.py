"""Fewer bytes, the same page: what is taken out of pages changes nothing that is seen, said or
run."""

import pytest

from bookkit.slim import slim_drawing, slim_page


@pytest.mark.parametrize(
    "page, slim",
    [
        (
            "<ul>\n <li>a</li>\n\n <li>b <a>c</a>\n d</li></ul>",
            "<ul><li>a</li><li>b <a>c</a>\nd</li></ul>",
        ),
        ("<p>a <b>b</b> <i>c</i></p>", "<p>a <b>b</b> <i>c</i></p>"),
        ("<div><pre>a\n  b\n\n</pre> </div>", "<div><pre>a\n  b\n\n</pre></div>"),
        ("<script>a\n\n b</script>", "<script>a\n\n b</script>"),
        ('<td class="text-left"><p>a</p></td>', "<td>a</td>"),
        (
            '<th class="head text-right"><p>a <b>b</b></p></th>',
            '<th class="text-right">a <b>b</b></th>',
        ),
        ("<td><p>a</p><p>b</p></td>", "<td><p>a</p><p>b</p></td>"),
        (
            '<span class="bp">self</span><span class="o">.</span><span class="mi">1</span>',
            'self.<span class="mi">1</span>',
        ),
        (
            (
                '<code class="docutils literal notranslate"><span class="pre">a</span> <span'
                ' class="pre">b</span></code>'
            ),
            "<code>a b</code>",
        ),
        (
            '<li class="toctree-l1"><a class="reference internal" href="a">b</a></li>',
            '<li class="toctree-l1"><a href="a">b</a></li>',
        ),
        (
            (
                '<details class="sd-sphinx-override sd-dropdown sd-card sd-mb-3" open>\n<summary'
                ' class="sd-summary-title sd-card-header">a</summary>'
            ),
            '<details class="sd-dropdown" open><summary>a</summary>',
        ),
    ],
)
def test_slim_page(page, slim):
    """Mutations: white space between words taken, or that of code; two paragraphs of a cell made
    one; a number in code left without its colour; a dropdown that stands open closed; a second run
    that changes what the first left."""
    assert slim_page(page) == slim + "\n" and slim_page(slim_page(page)) == slim + "\n"


def test_a_style_that_stands_often_in_a_drawing_stands_once():
    """Under a name of that drawing's own; not where there is no name, or where there are classes
    already.

    Mutations: a style that stands once moved too; the same class in two drawings; a drawing's own
    style taken."""
    box = '<rect style="fill: red"/>'
    drawing = (
        f'<svg style="fill: red" aria-labelledby="one-title one-text">\n {box}\n {box}{box}<path'
        ' style="fill: blue"/></svg>'
    )
    slim = slim_drawing(drawing)
    assert slim == (
        '<svg style="fill: red" aria-labelledby="one-title one-text"><style>.one-title-0{fill:'
        " red}</style>" + 3 * '<rect class="one-title-0"/>' + '<path style="fill: blue"/></svg>'
    )
    assert slim_drawing(slim) == slim
    for other in (
        drawing.replace("aria-labelledby", "data-x"),
        drawing.replace("<path", '<path class="x"'),
    ):
        assert slim_drawing(other).count("style=") == 5
