"""The whole book as one document: its order, its ids and its links."""

import pdf

PAGE = """<html><head><link rel="stylesheet" href="{up}_static/book.css?v=1">{next}</head><body>
<article class="bd-article"><script>x</script><h1 id="top">{title}</h1>{body}</article>
</body></html>"""


def test_pages_become_one_document_whose_links_hold(tmp_path):
    """Must catch: two pages with one id, a link to another page that leads out of the document, a
    style sheet of a folder below, a label that names another page's element."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "book.css").write_text("")
    first = '<a href="chapters/b.html#top">on</a><a href="https://example.org/x">out</a>'
    second = '<svg aria-labelledby="top t"><path fill="url(#top)"/></svg>'
    second += '<a href="../index.html">back</a>'
    follows = '<link rel="next" href="chapters/b.html">'
    (tmp_path / "index.html").write_text(PAGE.format(up="", next=follows, title="A", body=first))
    (tmp_path / "chapters" / "b.html").write_text(
        PAGE.format(up="../", next="", title="B", body=second)
    )
    html = tmp_path.resolve()
    assert pdf.pages(html) == ["index.html", "chapters/b.html"]
    text = pdf.joined(html)
    assert text.count('<link rel="stylesheet" href="_static/book.css">') == 1
    assert "<script>" not in text and text.index(">A<") < text.index(">B<")
    assert 'href="#chapters-b--top"' in text and 'id="chapters-b--top"' in text
    assert 'href="#index"' in text and 'id="index"' in text and "https://example.org/x" in text
    assert 'aria-labelledby="chapters-b--top chapters-b--t"' in text
    assert 'fill="url(#chapters-b--top)"' in text
