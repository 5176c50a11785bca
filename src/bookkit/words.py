"""How long a page is: the words of its main line, and the prose of a page, line by line.

The main line is what everybody reads: headings, paragraphs and lists. Boxes, captions, what is
folded, tables, code and equations are beside it. A number out of a formula, and a symbol between
dollars, are one word each. Needs no package: ``tools/prose.py`` reads pages with it, too.
"""

import re
from pathlib import Path

FENCE = re.compile(r"^\s*(`{3,}|~{3,}|:{3,})(.*)$")
# What holds text that somebody reads. In all other directives the body is data, code or a formula.
# Kinds that belong together share a line: MyST's and sphinx-design's, boxes, cards.
TEXT = {
    "container", "dropdown", "grid", "grid-item", "grid-item-card", "tip", "note", "margin",
    "objectives", "predict", "measured", "which-number", "wild", "glossary",
    "source-diff", "race", "recorded", "recordings", "pairs", "shards", "picture",
    "trace", "trace-image",
}  # fmt: skip
MARKED = re.compile(r"[{`$*_\[]")
MOST = 2400  # words in the main line of a chapter


def prose(page: str):
    """(line number, depth, text) of each line of a page that is prose. Depth 0 is the main line,
    more is inside a box or a fold."""
    header, fences = page.startswith("---\n"), []
    for number, line in enumerate(page.split("\n"), 1):
        if header:
            header = number == 1 or line != "---"
            continue
        fence = FENCE.match(line)
        if fence and fences and not fence[2].strip() and fence[1].startswith(fences[-1][0]):
            fences.pop()
        elif fence and (not fences or fences[-1][1]):
            name = re.match(r"\s*\{([\w-]+)\}\s*(.*)", fence[2])
            readable = bool(name) and name[1] in TEXT
            fences.append((fence[1], readable))
            if readable and name[1] not in ("container", "margin") and name[2]:
                yield number, len(fences), name[2]
                yield number, len(fences), ""
        elif fences and (not fences[-1][1] or re.match(r"\s*:[\w-]+:", line)):
            continue
        elif not re.match(r"\s*(\||\(.+\)=$|\$\$|%|<|\+\+\+)", line):
            yield number, len(fences), line


def plain(text: str) -> str:
    """The text as somebody reads it: roles that print a number are ``0``, as are symbols; links are
    their words, code is a name."""
    if not MARKED.search(text):
        return text
    text = re.sub(r"\s*\{cite(?::\w)?\}`[^`]*`", "", text)
    text = re.sub(r"\{(?:term|doc|ref)\}`([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", text)
    text = re.sub(r"\{[\w-]+\}`[^`]*`", "0", text)
    text = re.sub(r"(`+)[^`]+\1", "code", text)
    text = re.sub(r"\$[^$]+\$", "0", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text)


def main_line_words(page: str) -> int:
    """Words of the main line of a page, given as Markdown."""
    lines = "\n".join(text for _, depth, text in prose(page) if not depth)
    lines = re.sub(r"\$\$.*?\$\$|^\s*\d+\.\s", "", lines, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"[^\W_][^\s]*", plain(lines)))


def chapters(folder: Path) -> list[Path]:
    """The pages of the numbered parts that are not a section of another page, in the order of the
    contents."""
    contents = (folder / "_toc.yml").read_text("utf-8")
    pages = []
    for part in re.split(r"^  - ", contents, flags=re.MULTILINE):
        if re.search(r"^ *numbered:", part, re.MULTILINE):
            pages += re.findall(r"^      - file: (\S+)", part, re.MULTILINE)
    return [folder / f"{page}.md" for page in pages]


def report(folder: Path) -> list[str]:
    """One line with the words of each chapter; those over the limit are marked."""
    counts = [(page.stem, main_line_words(page.read_text("utf-8"))) for page in chapters(folder)]
    return [
        f"  {name:<28}{words:>6,}" + (f"  over {MOST:,}" if words > MOST else "")
        for name, words in counts
    ]
