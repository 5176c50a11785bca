"""Short names for what a script declares: a third of the bytes of our scripts is names that only their readers need.

A name that is declared in a file, as a variable, function or parameter, gets one short name, the same wherever it stands in the file;
so no scopes need to be known, and nothing can come to mean something else. Properties, keys, strings and what the browser brings keep
their names. For the JavaScript that we write, not for any: template literals, classes and `with` are refused.
"""

from collections import Counter
from itertools import count, product
import re
from string import ascii_letters

TOKEN = re.compile(r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<name>[A-Za-z_$][\w$]*)|(?P<number>\.?\d[\w.]*)
    |(?P<space>\s+)|(?P<mark>=>|\.\.\.|\?\.|\?\?|&&|\|\||\+\+|--|.)""", re.VERBOSE)
REGEX = re.compile(r"/(?:[^/\\\[]|\\.|\[(?:[^\]\\]|\\.)*\])+/[a-z]*")
RESERVED = set("""arguments async await break case catch class const continue debugger default delete do else export extends false finally
    for function if import in instanceof let new null of return set static super switch this throw true try typeof undefined var
    void while with yield NaN Infinity""".split())
# Names that a window has, and that a script which forgot to declare them would mean: these stay.
WINDOW = set("""close closed event external find focus frames history length location name open opener origin parent performance print
    screen scroll self status stop top""".split())
VALUE_FOLLOWS = {"(", ",", "=", ":", "[", "!", "&&", "||", "??", "?", "{", "}", ";", "+", "=>", "&", "|", "return", "...", "typeof", ""}


def tokens(code):
    """[kind, text] of each token; kind is text, name, number, space or mark. Comments are gone before."""
    found, place, last = [], 0, ""
    while place < len(code):
        pattern = REGEX if code[place] == "/" and last in VALUE_FOLLOWS else TOKEN
        match = pattern.match(code, place)
        text = match[0]
        if text == "`" or re.match(r"(?:class|with)[ (]", code[place:place + 6]):
            raise ValueError(f"{text} in a script: shorten.py does not know what is declared there.")
        found.append(["text" if pattern is REGEX else match.lastgroup, text])
        if found[-1][0] != "space":
            last = text
        place = match.end()
    return found


def shorten(code):
    """The script with short names."""
    found = tokens(code)
    seen = [number for number, (kind, _) in enumerate(found) if kind != "space"]
    uses, shorthands, declared = _read([found[number] for number in seen])
    spared = {found[seen[place]][1] for place in uses} - declared | RESERVED
    short = ("".join(letters) for size in count(1) for letters in product(ascii_letters, repeat=size))
    often = Counter(found[seen[place]][1] for place in uses)
    names = {}
    for name in sorted(declared, key=lambda name: (-often[name], name)):
        names[name] = next(made for made in short if made not in spared)
    for place in uses:
        token = found[seen[place]]
        if token[1] in names:
            token[1] = (f"{token[1]}:" if place in shorthands else "") + names[token[1]]
    return "".join(text for _, text in found)


def _read(line):
    """(places of names that are variables, places of those that are key and variable in one, names that are declared)."""
    text = lambda place: line[place][1] if 0 <= place < len(line) else ""
    uses, shorthands, declared, ends = [], set(), set(), _ends(line)
    levels = [dict(kind="block", declares=False)]  # of the brackets around
    for place, (kind, token) in enumerate(line):
        level, before, after = levels[-1], text(place - 1), text(place + 1)
        if token in {"(", "[", "{"}:
            inner = dict(kind=token, declares=False, pattern=False, start=place)
            binds = before in {"const", "let", "var"} or before == "," and level["declares"] or bool(level.get("pattern"))
            if token == "(":
                named = text(place - 2) == "function" or before in {"function", "catch"} or text(ends[place] + 1) == "=>"
                inner["pattern"] = named or level["kind"] == "object" and text(ends[place] + 1) == "{"
            elif token == "[":
                inner["pattern"] = binds and before not in {"=", "."}
            else:
                value = before in VALUE_FOLLOWS - {"{", "}", ";", "=>", ""} or before in {"const", "let", "var"}
                inner.update(kind="object" if value else "block", pattern=value and binds and before != "=")
            levels.append(inner)
        elif token in {")", "]", "}"}:
            levels.pop()
        elif token in {"const", "let", "var"}:
            level["declares"] = True
        elif token == ";":
            level["declares"] = False
        elif kind == "name" and token not in RESERVED and before not in {".", "?."}:
            key = level["kind"] == "object" and before in {"{", ","}
            if key and after in {":", "("}:
                continue
            uses.append(place)
            if key:
                shorthands.add(place)
            bound = before in {"const", "let", "var", "function"} or before == "," and level["declares"] or after == "=>"
            if bound or level.get("pattern") and before in {"(", "[", "{", ",", ":", "..."}:
                declared.add(token)
    return uses, shorthands, declared - WINDOW


def _ends(line):
    """Place of each opening bracket -> place of the one that closes it."""
    opened, ends = [], {}
    for place, (kind, token) in enumerate(line):
        if kind == "mark" and token in "([{":
            opened.append(place)
        elif kind == "mark" and token in ")]}":
            ends[opened.pop()] = place
    return ends
