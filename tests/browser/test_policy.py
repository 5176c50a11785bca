"""The Content-Security-Policy of the built pages: it keeps others out. That pages keep to it,
test_pages.py sees: a browser reports what it refuses."""

import re

import pytest
from visit import open_page

POLICY = re.compile(
    r'<head>\s*<meta charset="utf-8" />'
    r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"/>'
)
INTRUDERS = {
    "inline": "<script>window.intruders.push('inline')</script>",
    "handler": "<img src='none.png' onerror=\"window.intruders.push('handler')\">",
    "data": "<script src='data:text/javascript,window.intruders.push(`data`)'></script>",
    "link": "<a id='link' href=\"javascript:window.intruders.push('link')\">a link</a>",
}


def test_every_page_has_its_policy(book_html, paths):
    """Must catch: a page without a policy; a policy behind a script; one that allows any inline
    script, `eval`, or another server."""
    for path in paths:
        found = POLICY.search((book_html / path).read_text(encoding="utf-8"))
        assert found, path
        directives = dict(part.split(" ", 1) for part in found[1].split("; "))
        assert directives["default-src"] == "'none'" and directives["base-uri"] == "'none'"
        assert re.fullmatch(r"'self' file:( 'sha256-[\w+/]{43}=')+", directives["script-src"]), path
        assert not re.search(r"https?:|\*|unsafe-eval", found[1]), path


@pytest.fixture(scope="module", params=["with the policy", "without"])
def intruded(request, book_html, serve, tmp_path_factory):
    """(whether the page has its policy, scheme -> address of a page of the book with scripts that
    are not the book's). It has a folder of its own: other tests look at the book."""
    folder, guarded = tmp_path_factory.mktemp("intruded"), request.param == "with the policy"
    (folder / "_static").symlink_to(book_html / "_static")
    text = (book_html / "index.html").read_text(encoding="utf-8")
    text = text.replace("<title>", "<script></script><title>").replace(
        "</article>", "".join(INTRUDERS.values()) + "</article>"
    )
    if not guarded:
        text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (folder / "intruded.html").write_text(text, encoding="utf-8")
    with serve(folder) as address:
        yield guarded, {"file": folder.as_uri(), "http": address}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_what_is_put_into_a_page_does_nothing(opened, intruded, scheme):
    """Must catch: `script-src 'unsafe-inline'`; `default-src *`; a policy that a browser
    ignores."""
    guarded, addresses = intruded
    page = opened()
    page.add_init_script("window.intruders = []")
    open_page(page, f"{addresses[scheme]}/intruded.html")
    page.evaluate("document.querySelector('#link').click()")
    page.wait_for_timeout(100)
    assert set(page.evaluate("intruders")) == (set() if guarded else set(INTRUDERS))
    refused = [error for error in page.watch.errors if "Content Security Policy" in error]
    assert (len(refused) >= len(INTRUDERS)) == guarded
