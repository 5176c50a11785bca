"""English that a reader does not stumble over, and the length of chapters: `make check` prints it.

Each rule is a pattern of what trips a native reader, mostly German word order, with what to write
instead. The rules read the prose of pages, boxes, captions and of the text cells of labs, and the
docstrings, comments and messages of Python files, one sentence at a time; code, formulas and quoted
names are left out. A docstring and the message of an error begin with their subject. `KNOWN` holds
how many places of a page wait for their edit: no page may get worse, and a page or file without an
entry has none. Spelling is codespell's list of common mistakes, which needs no network, without the
words in `KEPT`.
"""

import re
import sys
from bisect import bisect_right
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

import words_of_code  # noqa: E402  (found here, installed or not)

from bookkit import words  # noqa: E402  (found here, installed or not)

# what trips | what to write instead
RULES = [
    tuple(part.strip() for part in line.split(" || "))
    for line in r"""
in (the )?place of || instead of
(have|has|had) (it|them|this|that) from || was read in; was taken from
(hold|holds|held|holding) (\w+ ){0,4}against || compare with
^Who(ever)?\b[^?]*,[^?]*[.:;]$ || "Whoever needs the rest asks for it": no comma, or another subject
^What\b[^?,]*, (is|are|was|were|comes?|goes|stays?|lies|stands?)\b[^?]*[.:;]$ || name the subject with a noun
(and|but) who \w+s [^?]*[.:;]$ || a noun: "the rank that ..."
\bof (which|whom) (only |at least |about )?(one|two|three|four|five|six|seven|eight|nine|ten|\w+teen|most|some|all|\d+)\b || "seven of them", in a sentence of its own
\b(stand|stands|stood) (in|on) (a|an|no|the|this|that|each) (\w+ ){0,2}(table|page|list|row|column|sheet|file)\b || is in, is on
(?<!there )(?<!There )(?<!Why )(?<!why )\b(is|are) no (rank|collective|GPU|page|test|lab|parameter|part|matter|shard|tensor|message|network|place|accident)s?\b || is not a
(?<!there )(?<!There )\b(is|are) none\b(?! of) || say what it is not, with the noun
\blet it be\b || leave it out, or say what to do
\bhardly\b || barely, almost never, or the number
is all there is to || name the whole thing
\b([Oo]urs|[Tt]heirs)\b || the noun: "this book's ring", "PyTorch's"
\b[Ll]ook what\b || look at what
at the begin\b || at the beginning
\b(is|are|was|were) others\b || differs
\b(is|are) to be (seen|found|read|had|feared|expected)\b || can be seen
\b[Ww]hat (has|have) (a|an|the|each|every) [^?]*\? || what does a rank hold?
\bHow (many|much) [\w ]+ (has|have) (a|an|the|each|every)\b || how many ... does a rank hold?
^(On top|Beneath|Under|Behind|Beside|Into|Out of|Above|Below)\b[^,.]{0,40}? (comes?|lies?|stands?|goes?) (?!\w+ed\b) || subject first
\bno word (about|on|of)\b || says nothing about
\b(thereby|therein|thereof|hereby|herein)\b || by this, in this, or a new sentence
\ball what\b|\bthat what\b || all that, what
\bin average\b || on average
\b(the )?half of (it|them) is\b || half is
\bby it\b || "so that", or the noun
\ba thing of\b || the noun
\bthe quarrel\b || the dispute
\bnot before\b || only after, only then
\bsince longer\b || for longer
\bsimply\b || nothing: leave it out
\b[Oo]ur (own|model|GPT|ring|rule|line|emulation|buckets|code|version)\b || this book's
\b[Cc]heck yours\b || check your function
\b(the|The|a|A) (dark|light|pale|white|black|bright|grey|gray)(er|est)? (staircase|band|bar|bars|box|boxes|cell|cells|hatching|line|lines|outline|part|parts|row|rows|square|squares|staircases)\b || name the place or the pattern: in dark mode lightness turns round
\b([Ww]hite|[Bb]lack|[Pp]ale|[Dd]ark|[Bb]right|[Gg]rey) (is|are|means|marks|stands for)\b|\b[Pp]ale: || name the place or the pattern: in dark mode lightness turns round
\bfor ever\b || forever
\b([Cc]omput(ed?|es|ing)) again\b || recompute
\bper (second|step) and (GPU|token|rank)\b || per second per GPU
\b(each|every|an?) parameter and token\b || per parameter per token
\bhalf (as \w+ (\w+ )?)?again\b || 1.5 times as many
\b([Aa]lso|is|are) in print\b || you will read
\bLook at\b || say what is to be seen: "The dashed line is the GPU's memory"
\b[Cc]ards? (above|below) || the explorer, the planner: a card is hardware
\bknobs of the card\b || knobs of the explorer
^Figure \d+: || the title of a fold names the subject: its caption has the number, which may change
\bcard of \S+ is \S+ short\b || the bytes, and: more than the GPU has
""".strip().splitlines()  # noqa: E501
]
# Beginnings of a docstring, or of an error's message, whose subject is elsewhere; a question may.
NO_SUBJECT = re.compile(
    r"""(?:^[ \t]*[rR]?["']{3}|\braise\ [\w.]+\(\s*[fF]?["'])
        (Of|What|Not\ so|The\ same|Also|That|Those|Who|By|As)\b(?![^.:;"]*\?)""",
    re.MULTILINE | re.VERBOSE,
)
# Page -> places where a rule applies and the page has not been edited yet. Better empty.
KNOWN: dict[str, int] = {"CHANGELOG.md": 2}  # of versions that were so
# Words that codespell takes for mistakes and that are none here.
KEPT = {"als", "ans", "co-ordinates", "inout", "nd", "ot", "te", "bu", "doub", "ue", "notin"}
KEPT |= {"paramters", "comparre"}  # what tests mistype on purpose


def sentences(lines):
    """(line number, sentence) of prose: lines of one paragraph are joined, then cut at a full
    stop, a question mark, a colon or a semicolon that a space follows."""
    paragraph: list[tuple[int, str]] = []

    def cut():
        text = words.plain("\n".join(line for _, line in paragraph))
        for match in re.finditer(r"\S.*?(?:[.?!:;](?=\s)|$(?!\n))", text, re.DOTALL):
            number = paragraph[text[: match.start()].count("\n")][0]
            yield number, " ".join(match[0].split())
        paragraph.clear()

    before = 0
    for number, depth, text in lines:
        new = re.match(r"\s*([-*]|\d+\.|#+|:)\s+", text)
        if not text.strip() or new or depth != before:
            yield from cut()
        before = depth
        text = text[new.end() :] if new else text
        if text.strip():
            paragraph.append((number, text.strip()))
    yield from cut()


def pages(root: Path = ROOT):
    """(name, Markdown) of everything that somebody reads."""
    for folder in (".", "chapters", "labs", "assignments/*"):
        for path in sorted(root.glob(f"{folder}/*.md")):
            yield path.relative_to(root).as_posix(), path.read_text("utf-8")


# The rules over many sentences at once, one a line: nothing in a pattern reaches over its line.
COMPILED = [
    (re.compile(pattern.replace("[^", r"[^\n"), re.MULTILINE), instead)
    for pattern, instead in RULES
]
# Files of Python code: these folders, but not the files that quote bad English on purpose.
CODE = ("src", "tests", "tools", "bench", "examples", "assignments", "workshop")
QUOTING = {"tools/prose.py", "tests/test_prose.py", "tests/engines/test_claims_of_pages.py"}


def broken(read) -> list[tuple]:
    """(place, what was found, what to write instead) for each sentence and each rule it breaks;
    ``read`` has a place and a text for each sentence. One search for each rule: it is fast."""
    read, found, ends = list(read), set(), []
    for _, sentence in read:
        ends.append((ends[-1] if ends else 0) + len(sentence) + 1)
    everything = "\n".join(sentence for _, sentence in read)
    for pattern, instead in COMPILED:
        for match in pattern.finditer(everything):
            found.add((read[bisect_right(ends, match.start())][0], match[0], instead))
    return sorted(found)


def stumbles(page: str) -> list[tuple[int, str, str]]:
    """The sentences of a page that break a rule."""
    return broken(sentences(words.prose(page)))


def sources(root: Path = ROOT):
    """(name, source) of each Python file that is read."""
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        if (name := path.relative_to(root).as_posix()) not in QUOTING:
            yield name, path.read_text("utf-8")


def files(root: Path = ROOT):
    """(name, paragraphs of prose) of each Python file, a paragraph as lines with their number."""
    for name, source in sources(root):
        yield (
            name,
            [
                [(source.count("\n", 0, offset) + 1, 0, line) for line in text.split("\n")]
                for offset, text in words_of_code.paragraphs(source)
            ],
        )


def without_subject(source: str) -> list[tuple[int, str, str]]:
    """The docstrings and messages of errors that do not begin with their subject."""
    instead = "begin with the subject: a noun, or a verb for what a function does"
    return [
        (source.count("\n", 0, match.end()) + 1, match[1], instead)
        for match in NO_SUBJECT.finditer(source)
    ]


@cache
def mistakes() -> dict[str, str]:
    """codespell's list: a mistake, and how the word is spelled."""
    from codespell_lib import _codespell

    folder = Path(_codespell.__file__).parent / "data"
    rows = (folder / "dictionary.txt").read_text("utf-8").splitlines()
    return dict(row.split("->", 1) for row in rows if "->" in row)


WORD = re.compile(r"[A-Za-z][a-z'-]+")


def misspelled(lines, known: dict[str, str]) -> list[tuple[int, str, str]]:
    """(line, word, how it is spelled) for each word of prose that the list knows as a mistake."""
    lines, found = list(lines), []
    said = set(WORD.findall("\n".join(text for _, _, text in lines)))
    if known.keys().isdisjoint(map(str.lower, said)):
        return found
    for number, _, text in lines:
        for word in WORD.findall(words.plain(text)):
            if (low := word.lower()) in known and low not in KEPT:
                found.append((number, word, known[low].strip(", ")))
    return found


def main(root: Path = ROOT, known: dict[str, int] | None = None) -> int:
    """Prints every stumble, every misspelled word and the length of chapters; returns how many
    pages are worse than they may be."""
    allowed, worse = KNOWN if known is None else known, 0
    spelling = mistakes() if find_spec("codespell_lib") else {}
    if not spelling:
        print("prose:  codespell is not installed: spelling was not looked at")
    texts = {name: [list(words.prose(page))] for name, page in pages(root)} | dict(files(root))
    found = broken(
        ((name, number), sentence)
        for name, paragraphs in texts.items()
        for lines in paragraphs
        for number, sentence in sentences(lines)
    )
    by_name: dict[str, list] = {name: [] for name in texts}
    for name, source in sources(root):
        by_name[name] += without_subject(source)
    for (name, number), what, instead in found:
        by_name[name].append((number, what, instead))
    for name, found in by_name.items():
        wrong = misspelled((line for lines in texts[name] for line in lines), spelling)
        if len(found) > allowed.get(name, 0) or wrong:
            worse += 1
            for number, what, instead in found + wrong:
                print(f"  {name}:{number}: {what!r}: {instead}")
        elif len(found) < allowed.get(name, 0):
            print(f"  {name}: {len(found)} left: tools/prose.py may say so")
    print("prose:  words in the main line of each chapter")
    lengths = words.report(root)
    print("\n".join(lengths))
    return worse + sum(f"over {words.MOST:,}" in line for line in lengths)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
