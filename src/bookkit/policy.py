"""A Content-Security-Policy in every page: a browser runs the scripts of the book and no others.

Whatever ends up in a page, from an output of a notebook to an address with markup in it, is text
and pictures: a script runs only if it is a file of the book or if its hash is in the page's policy.
The policy is written when a page is finished, from the inline scripts that are in it then.

``'self'`` is the book's own server. A page that is opened as a file has no server, so the policy
names the scheme ``file:`` as well; a page that comes over http cannot load from there in any case.
Styles may be inline, because explorers and plotly set them while they draw; they run nothing.
"""

import base64
import hashlib
from html.parser import HTMLParser

from bookkit.cards import after_pages
from bookkit.offline import pages_in

START, END = '<meta http-equiv="Content-Security-Policy" content="', '"/>'
AFTER = '<meta charset="utf-8" />'
OWN = "'self' file:"
DIRECTIVES = {
    "default-src": "'none'",
    "script-src": OWN,
    "style-src": f"{OWN} 'unsafe-inline'",
    "img-src": f"{OWN} data: blob:",
    "font-src": OWN,
    "form-action": OWN,
    "base-uri": "'none'",
}
# A script of another type is data, which no browser runs.
RUN = {"", "text/javascript", "module"}


class _InlineScripts(HTMLParser):
    """The texts of the inline scripts of a page that a browser would run."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.texts, self.inside = [], False

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.inside = tag == "script" and "src" not in given and given.get("type", "") in RUN
        if self.inside:
            self.texts.append("")

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data

    def handle_endtag(self, tag):
        self.inside = False


def policy(page):
    """The Content-Security-Policy for the HTML of a page."""
    scripts = _InlineScripts()
    scripts.feed(page)
    digests = sorted({hashlib.sha256(text.encode()).digest() for text in scripts.texts})
    hashes = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    directives = {**DIRECTIVES, "script-src": DIRECTIVES["script-src"] + hashes}
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


def with_policy(page):
    """The HTML of a page with its policy in front of everything that the page loads; a policy of an
    earlier build is replaced."""
    before, found, rest = page.partition(AFTER)
    if not found:
        raise ValueError(f"a page has no {AFTER}, after which its policy would be written.")
    if rest.startswith(START):
        rest = rest[rest.index(END) + len(END) :]
    return f"{before}{found}{START}{policy(before + rest)}{END}{rest}"


def _write_policies(app, output):
    for path in pages_in(output):
        page = path.read_text(encoding="utf-8")
        if (finished := with_policy(page)) != page:
            path.write_text(finished, encoding="utf-8")


def setup(app):
    # before offline.py reads the finished pages
    after_pages(app, _write_policies, priority=850)
