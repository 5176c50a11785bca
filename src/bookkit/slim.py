"""The same page in fewer bytes: what Sphinx, its themes and Pygments write into a page and nothing
reads, is taken out again.

A page is held to 200 kB of HTML, our CSS and our JavaScript. Nothing here changes what is seen,
said or printed: white space that is not shown, classes and wrappers that no style sheet asks for,
elements that are never displayed, and a style of a drawing that is written on each of its parts.
"""

import re
from collections import Counter

CODE = re.compile(
    r'<code class="docutils literal notranslate">((?:<span class="pre">[^<]*</span>\s*)+)</code>'
)
# Names, punctuation, operators and `self` in code have the colour of the text.
PLAIN = re.compile(r'<span class="(?:n|nn|p|w|o|bp)">([^<]*)</span>')
SVG = re.compile(r"<svg\b[^>]*>.*?</svg>", re.DOTALL)
DROPDOWN = re.compile(
    r'<details class="sd-sphinx-override sd-dropdown sd-card[^"]*"(.*?)>\s*<summary class="[^"]*">'
)
CELL = re.compile(r"(<t[dh]\b[^>]*>)<p>((?:(?!</?p[ >]).)*)</p>(?=</t[dh]>)", re.DOTALL)

# White space is kept as it is in these, and is not shown beside the tags of those.
KEPT = re.compile(r"(<(pre|textarea|script|style)\b.*?</\2>)", re.DOTALL)
BLOCKS = (
    "html|head|meta|link|title|body|div|section|article|aside|main|nav|header|footer|dialog|form|p|ul|ol|li|dl|dt|dd|figure|"
    "figcaption|blockquote|details|summary|h[1-6]|table|caption|colgroup|col|thead|tbody|tr|td|th|noscript|pre|script|style"
)
BESIDE = re.compile(rf"\s*(</?(?:{BLOCKS})\b[^>]*>)\s*")

WORDS = (  # what stands in a page more often than it is of use: (pattern, instead)
    (' class="reference internal"', ""),
    (' class="current reference internal"', ' class="current"'),
    (" notranslate", ""),
    (re.compile(r'<tr class="row-(?:odd|even)">'), "<tr>"),
    (re.compile(r'(<t[dh]) class="(?:head )?text-left"'), r"\1"),
    (
        re.compile(r'(<th) class="head( text-\w+)?"'),
        lambda match: match[1] + (f' class="{match[2].strip()}"' if match[2] else ""),
    ),
    (re.compile(r'<span class="sd-summary-state-marker.*?</svg></span>', re.DOTALL), ""),
    (DROPDOWN, r'<details class="sd-dropdown"\1><summary>'),
    ("sd-summary-content sd-card-body docutils", "sd-summary-content"),
    (' class="sd-card-text"', ""),
    (re.compile(r"<(\w+) [^>]*\bpst-async-banner-revealer\b.*?</aside>\s*</div>", re.DOTALL), ""),
    (
        re.compile(
            r'<header id="pst-header"[^>]*>\s*</header>|<div'
            r' id="pst-scroll-pixel-helper"></div>|<footer class="bd-footer">\s*</footer>'
        ),
        "",
    ),
    (
        re.compile(r'<div class="sidebar-primary-items__end.*?</div>\s*</div>\s*</div>', re.DOTALL),
        "",
    ),
)


def slim_page(page):
    """A whole page of the built book in fewer bytes; a page that is slim already comes back as it
    is."""
    page = CODE.sub(lambda match: f"<code>{re.sub('</?span[^>]*>', '', match[1])}</code>", page)
    page = PLAIN.sub(r"\1", page)
    for pattern, instead in WORDS:
        page = (
            page.replace(pattern, instead)
            if isinstance(pattern, str)
            else pattern.sub(instead, page)
        )
    page = SVG.sub(lambda match: slim_drawing(match[0]), page)
    page = "".join(
        (
            part
            if number % 3 == 1
            else ""
            if number % 3 == 2
            else BESIDE.sub(r"\1", re.sub(r"\s*\n\s*", "\n", part))
        )
        for number, part in enumerate(KEPT.split(page))
    )
    return CELL.sub(r"\1\2", page) + "\n" * (not page.endswith("\n"))


def slim_drawing(drawing):
    """SVG without white space between its elements; a style that three of them or more have becomes
    a class, named after the drawing."""
    drawing = re.sub(r">\s*\n\s*<", "><", drawing)
    named = re.search(r'aria-labelledby="([\w-]+)', drawing)
    opening, inside = re.match(r"(<svg[^>]*>)(.*)", drawing, re.DOTALL).groups()
    often = [
        style
        for style, count in Counter(re.findall(r' style="([^"]*)"', inside)).items()
        if count > 2
    ]
    if not named or not often or "class=" in inside:
        return drawing
    rules = ""
    for number, style in enumerate(often):
        name = f"{named[1]}-{number}"
        inside = inside.replace(f' style="{style}"', f' class="{name}"')
        rules += f".{name}{{{style}}}"
    return f"{opening}<style>{rules}</style>{inside}"
