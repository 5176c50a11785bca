"""From page to page: each page's question, the way to its lab and back, labs by number."""

import re
from types import SimpleNamespace

from pages import ROOT
from small_books import builder

from bookkit.ways import parts, question_of, title_of

ENV = SimpleNamespace(
    found_docs={"chapters/a", "chapters/b", "labs/01-a"},
    metadata={
        "chapters/a": dict(lab="labs/01-a", question="Why?"),
        "chapters/b": dict(lab="labs/9"),
    },
)


def test_every_chapter_asks_a_question_and_is_on_the_front_page():
    """Must catch: a question taken off a page, a page of the contents that the front page leaves
    out, a caption lost where a list continues a part, labs among the chapters; a lab that does not
    stand under its chapter, or has another name or number."""
    found = parts(ROOT)
    contents = (ROOT / "_toc.yml").read_text("utf-8").partition("caption: Teach")[0]
    listed = [page.stem for pages in found.values() for page in pages]
    assert listed == [
        name
        for name in re.findall(r"file: chapters/(\S+)", contents)
        if question_of(ROOT / "chapters" / f"{name}.md")
    ]
    for number, name in enumerate(re.findall(r"^      - file: (\S+)", contents, re.MULTILINE), 1):
        page = ROOT / f"{name}.md"
        lab = re.search(r"^lab: labs/((\d+)\S+)", page.read_text("utf-8"), re.MULTILINE)
        title = re.sub(r"^\d+\. |[?:].*$", "", title_of(page))
        if lab:
            below = contents.partition(f"      - file: {name}\n")[2]
            assert f"labs/{lab[1]}\n" in below.partition("\n      - file")[0] + "\n"
            stored = (ROOT / "labs" / f"{lab[1]}.ipynb").read_text("utf-8")
            assert re.search(r'"# ([^"\\\n]+)', stored)[1].startswith(title)
            assert int(lab[2]) in (number, int(re.sub(r"\..*|\D+", "", title_of(page)) or 0))
    assert list(found) == re.findall(r"caption: (.*?) *(?:#.*)?\n", contents)
    assert all(question_of(page).endswith("?") for pages in found.values() for page in pages)
    assert "```{chapters-and-questions}\n```\n" in (ROOT / "index.md").read_text("utf-8")


def test_the_table_is_made_from_contents_and_pages(tmp_path):
    """Must catch: a title, a question or an address that is not the page's; a part without its
    caption; a page outside the parts with chapters; a chapter without a question passed in
    silence."""
    pages = {
        "_toc.yml": "root: index\nparts:\n  - caption: One\n    numbered: 1\n    chapters:\n"
        "      - file: chapters/a\n  - chapters:\n      - file: chapters/b\n"
        "  - caption: Other\n    chapters:\n      - file: chapters/c\n",
        "index": "# Book\n\n```{chapters-and-questions}\n```\n",
        "chapters/a": "---\nquestion: Why?\n---\n# Page a\n",
        "chapters/b": "# Page b\n",
        "chapters/c": "# Page c\n",
    }
    built, warnings = builder(tmp_path, "ways")(**pages)
    page = built["index"]
    table = page[page.index("<table") : page.index("</table>")]
    assert re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", table)).split() == (
        "Chapter Its question One Page a Why? Page b".split()
    )
    assert re.findall('href="([^"]*)"', table) == ["chapters/a.html", "chapters/b.html"]
    assert "b.md asks no question: write one into its front matter." in warnings
