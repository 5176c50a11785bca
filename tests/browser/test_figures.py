"""The figures and the still pictures on a phone: no text runs into another or out of its figure."""

import pytest
from visit import PHONE, lines, new_context, open_page

COLLISIONS = """() => [
  ...document.querySelectorAll(".plotly-figure, .picture svg")
].flatMap(figure => {
  const edge = figure.getBoundingClientRect(), found = [];
  const texts = [...figure.querySelectorAll("text")]
    .filter(text => text.textContent.trim() && text.checkVisibility({visibilityProperty: true}));
  const signs = text => [...text.textContent].map((sign, k) => {
    const of = text.getExtentOfChar(k), seen = text.getScreenCTM(),
      from = new DOMPoint(of.x, of.y).matrixTransform(seen),
      to = new DOMPoint(of.x + of.width, of.y + of.height).matrixTransform(seen);
    return [sign, {left: from.x, right: to.x, top: from.y, bottom: to.y}]; });
  const boxes = texts.flatMap(text => { // signs with places of their own, and lines of a title
    if ((text.getAttribute("x") || "").includes(" ")) return signs(text);
    const rows = [...text.querySelectorAll("tspan.line")];
    return (rows.length ? rows : [text])
      .map(row => [row.textContent, row.getBoundingClientRect()]); });
  boxes.forEach(([words, box], k) => {
    if (box.left < edge.left - 2 || box.right > edge.right + 2)
      found.push(`${words}: ${Math.round(box.left)} to ${Math.round(box.right)} px`);
    boxes.slice(k + 1).forEach(([others, other]) => {
      const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (across > 2 && down > 6) found.push(`${words} runs into ${others}`); });
  });
  return found;
})"""


@pytest.fixture
def phone(browser):
    with new_context(browser, viewport=PHONE) as context:
        yield context.new_page()


def test_texts_keep_apart(phone, homes, paths, book_html):
    """Must catch: a label of the peak in the line of the title, or longer than the figure is
    wide."""
    problems = {}
    for path in paths:
        page = (book_html / path).read_text(encoding="utf-8")
        if "plotly-figure" in page or "figure picture" in page:
            open_page(phone, f"{homes['file']}/{path}")
            problems[path] = phone.evaluate(COLLISIONS)
    assert problems and not lines(problems)


def test_a_collision_is_seen(phone):
    """Must catch: boxes that are never compared."""
    phone.set_content(
        '<div class="plotly-figure" style="width: 200px"><svg width="200"><text x="5" y="20">one'
        ' text</text><text x="30" y="22">another</text><text x="180" y="60">beyond the'
        " edge</text></svg></div>"
    )
    found = phone.evaluate(COLLISIONS)
    assert len(found) == 2 and "runs into" in found[0] and "beyond the edge" in found[1]
