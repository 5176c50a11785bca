"""The prose of a Python file: docstrings, comments and messages, one paragraph at a time.

Needs no package and compiles nothing, so that ``tools/prose.py`` reads all files in about a second.
A message is a string of at least four words; what an f-string fills in is ``0``. Blocks that are
indented in a docstring are code, and each cell of a line ``a | b`` is a paragraph.
"""

import re
from itertools import groupby

# A comment, or a string without the letters before it. Each alternative begins with a character of
# its own, which makes the search fast.
TOKEN = re.compile(
    r"""\#[^\n]*
      | "(?:""(?:[^"\\]|\\.|"(?!""))*\"{3} | (?:[^"\\\n]|\\.)*")
      | '(?:''(?:[^'\\]|\\.|'(?!''))*'{3} | (?:[^'\\\n]|\\.)*')""",
    re.VERBOSE | re.DOTALL,
)
PREFIX = re.compile(r"(?<!\w)[rRbBfFuU]{1,2}$")
ESCAPED = {r"\n": "\n", r"\t": " ", "\\\n": "", r"\"": '"', r"\'": "'"}


def said(token: str, prefix: str) -> str:
    """The text of a string, or of a comment without its mark."""
    if token[0] == "#":
        return re.sub(r"^#[:!]?\s?|\s+#\s?noqa.*", "", token)
    text = token[3:-3] if token[:3] in ('"""', "'''") else token[1:-1]
    if "r" not in prefix and "\\" in text:
        text = re.sub(r"""\\[nt"'\n]""", lambda found: ESCAPED[found[0]], text)
    if "f" in prefix:
        text = re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "0", text)
    return text


def pieces(source: str):
    """(offset, text, whether it is a string) of comments and strings: strings that Python joins are
    one, and so are lines of comment that follow each other."""
    start = end = 0
    text, kind = "", None
    for match in TOKEN.finditer(source):
        string = match[0][0] != "#"
        before = PREFIX.search(source, max(end, match.start() - 3), match.start())
        prefix = before[0].lower() if string and before else ""
        gap = source[end : match.start() - len(prefix)]
        more = said(match[0], prefix)
        if string is kind and not gap.strip() and (string or gap.count("\n") == 1):
            text += more if string else "\n" + more
        else:
            if text:
                yield start, text, kind
            start, text, kind = match.start(), more, string
        end = match.end()
    if text:
        yield start, text, kind


def paragraphs(source: str):
    """(offset, text) of the paragraphs of a file that somebody reads as English."""
    for offset, text, string in pieces(source):
        if string and text.count(" ") < 3:
            continue
        lines = text.split("\n")
        indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
        base, code = min(indents, default=0), False
        for there, block in groupby(lines, lambda line: bool(line.strip())):
            block = list(block)
            code = string and there and block[0].startswith(" " * (base + 4))
            if not there or code:
                continue
            prose = [line for line in block if " | " not in line]
            yield offset, "\n".join(prose)
            for line in block:
                if " | " in line:
                    yield from ((offset, cell.strip()) for cell in line.split("|") if cell.strip())
