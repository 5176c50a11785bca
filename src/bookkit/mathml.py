r"""LaTeX formulas become MathML while the book is built, so that a page needs no script to show
them.

``to_mathml(latex, display)`` reads the part of LaTeX the book uses and refuses the rest with
``UnsupportedMath``: a command that is not in the tables below, a brace that is not closed, a ``&``
outside an alignment. Nothing is passed through in the hope that it will do. In a build the refusal
is a warning with page, line and formula, and a warning stops the build.

The output is MathML Core, the part that browsers draw: alignment of columns is left to the style
sheet (classes ``aligned``, ``cases``, ``matrix`` on ``mtable``), bold and script letters are their
own Unicode characters, and every delimiter outside ``\left ... \right`` is kept from stretching.
"""

import re
from dataclasses import dataclass
from html import escape

from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)


class UnsupportedMath(ValueError):
    """A formula uses something ``to_mathml`` does not know; the message names it and shows the
    formula."""


def to_mathml(latex: str, display: bool) -> str:
    r"""Translate a formula to one ``<math>`` element.

    ``latex`` is what stands between the dollars, ``display`` says whether it stands on a line of
    its own. Raises ``UnsupportedMath``.

    >>> to_mathml(r"4\Psi", display=False)
    '<math><mn>4</mn><mi mathvariant="normal">Ψ</mi></math>'
    """
    markup = _Parser(latex).formula()
    return f'<math display="block">{markup}</math>' if display else f"<math>{markup}</math>"


# ---------------------------------------------------------------- what is known

GREEK = {
    name: chr(0x3B1 + i)
    for i, name in enumerate(
        "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
        " varsigma sigma tau upsilon varphi chi psi omega".split()
    )
} | {"epsilon": "ϵ", "phi": "ϕ", "vartheta": "ϑ"}
CAPITAL_GREEK = {
    "Gamma": "Γ",
    "Delta": "Δ",
    "Theta": "Θ",
    "Lambda": "Λ",
    "Xi": "Ξ",
    "Pi": "Π",
    "Sigma": "Σ",
    "Upsilon": "Υ",
    "Phi": "Φ",
    "Psi": "Ψ",
    "Omega": "Ω",
}
SYMBOLS = {
    "infty": "∞",
    "partial": "∂",
    "nabla": "∇",
    "ell": "ℓ",
    "emptyset": "∅",
    "forall": "∀",
    "exists": "∃",
    "ldots": "…",
    "dots": "…",
    "cdots": "⋯",
    "vdots": "⋮",
    "ddots": "⋱",
    "top": "⊤",
    "bot": "⊥",
    "prime": "′",
    "degree": "°",
    "#": "#",
    "%": "%",
    "$": "$",
    "&": "&",
    "_": "_",
}
OPERATORS = {
    "cdot": "⋅",
    "times": "×",
    "div": "÷",
    "pm": "±",
    "mp": "∓",
    "ast": "∗",
    "star": "⋆",
    "circ": "∘",
    "bullet": "∙",
    "oplus": "⊕",
    "otimes": "⊗",
    "odot": "⊙",
    "cup": "∪",
    "cap": "∩",
    "setminus": "∖",
    "land": "∧",
    "wedge": "∧",
    "lor": "∨",
    "vee": "∨",
    "neg": "¬",
    "lnot": "¬",
    "le": "≤",
    "leq": "≤",
    "ge": "≥",
    "geq": "≥",
    "ne": "≠",
    "neq": "≠",
    "ll": "≪",
    "gg": "≫",
    "approx": "≈",
    "sim": "∼",
    "simeq": "≃",
    "equiv": "≡",
    "propto": "∝",
    "in": "∈",
    "notin": "∉",
    "ni": "∋",
    "subset": "⊂",
    "subseteq": "⊆",
    "supset": "⊃",
    "supseteq": "⊇",
    "mid": "∣",
    "parallel": "∥",
    "perp": "⊥",
    "coloneqq": "≔",
    "to": "→",
    "rightarrow": "→",
    "leftarrow": "←",
    "gets": "←",
    "leftrightarrow": "↔",
    "mapsto": "↦",
    "Rightarrow": "⇒",
    "implies": "⟹",
    "Leftarrow": "⇐",
    "Leftrightarrow": "⇔",
    "iff": "⟺",
    "longrightarrow": "⟶",
    "uparrow": "↑",
    "downarrow": "↓",
    "colon": ":",
}
LARGE = {"sum": "∑", "prod": "∏", "coprod": "∐", "bigcup": "⋃", "bigcap": "⋂", "bigoplus": "⨁"}
INTEGRALS = {"int": "∫", "iint": "∬", "oint": "∮"}
FUNCTIONS = "arg cos det dim exp gcd ker lg ln log sin tan tanh cosh sinh Pr".split()
LIMITS = "max min sup inf lim argmax argmin".split()
OPENING = {
    "(": "(",
    "[": "[",
    r"\{": "{",
    r"\lbrace": "{",
    r"\lceil": "⌈",
    r"\lfloor": "⌊",
    r"\langle": "⟨",
    r"\lvert": "|",
    r"\lVert": "‖",
    r"\lbrack": "[",
}
CLOSING = {
    ")": ")",
    "]": "]",
    r"\}": "}",
    r"\rbrace": "}",
    r"\rceil": "⌉",
    r"\rfloor": "⌋",
    r"\rangle": "⟩",
    r"\rvert": "|",
    r"\rVert": "‖",
    r"\rbrack": "]",
}
EITHER = {"|": "|", r"\|": "‖", r"\vert": "|", r"\Vert": "‖", "/": "/"}
SPACES = {
    ",": "0.1667em",
    ":": "0.2222em",
    ">": "0.2222em",
    ";": "0.2778em",
    "!": "-0.1667em",
    "quad": "1em",
    "qquad": "2em",
}
ACCENTS = {"hat": "^", "bar": "¯", "tilde": "~", "vec": "→", "dot": "˙", "ddot": "¨"}
STRETCHED = {
    "overline": ("mover", "¯"),
    "underline": ("munder", "_"),
    "widehat": ("mover", "^"),
    "widetilde": ("mover", "~"),
    "overrightarrow": ("mover", "→"),
}
BRACES = {"underbrace": ("munder", "⏟"), "overbrace": ("mover", "⏞")}
SIZES = {"big": "1.2em", "Big": "1.8em", "bigg": "2.4em", "Bigg": "3em"}
SIGNS = {"+": "+", "-": "−", r"\pm": "±", r"\mp": "∓"}
PLAIN_OPERATORS = {
    "+": "+",
    "-": "−",
    "*": "∗",
    "=": "=",
    "<": "<",
    ">": ">",
    ":": ":",
    ",": ",",
    ";": ";",
    "!": "!",
}

# First code points of the mathematical alphabets: capitals, small letters, digits; and the letters
# that stand apart.
ALPHABETS = {
    "mathbf": (0x1D400, 0x1D41A, 0x1D7CE, {}),
    "mathit": (0x1D434, 0x1D44E, None, {"h": "ℎ"}),
    "boldsymbol": (0x1D468, 0x1D482, None, {}),
    "mathbb": (
        0x1D538,
        0x1D552,
        0x1D7D8,
        {"C": "ℂ", "H": "ℍ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"},
    ),
    "mathcal": (
        0x1D49C,
        0x1D4B6,
        None,
        {
            "B": "ℬ",
            "E": "ℰ",
            "F": "ℱ",
            "H": "ℋ",
            "I": "ℐ",
            "L": "ℒ",
            "M": "ℳ",
            "R": "ℛ",
            "e": "ℯ",
            "g": "ℊ",
            "o": "ℴ",
        },
    ),
}
TEXT = {
    "text": "",
    "textrm": "",
    "mbox": "",
    "textit": "math-italic",
    "textbf": "math-bold",
    "texttt": "math-code",
}
NAMES = {"mathrm": "", "operatorname": "", "mathsf": "math-sans", "mathtt": "math-code"}
ALIGNED = {"aligned", "align", "align*", "split", "alignat", "eqnarray"}
TABLES = ALIGNED | {
    "gathered",
    "gather",
    "gather*",
    "cases",
    "array",
    "matrix",
    "pmatrix",
    "bmatrix",
    "vmatrix",
}
FENCES = {"cases": ("{", ""), "pmatrix": ("(", ")"), "bmatrix": ("[", "]"), "vmatrix": ("|", "|")}
UNWRAPPED = {"equation", "equation*", "displaymath", "math"}

TOKEN = re.compile(
    r"""
      \\[A-Za-z]+\*?            # a command by name
    | \\.                       # a command of one character: \, \{ \\ ...
    | \d+(?:\{,\}\d{3})*(?:\.\d+)?  # a number; {,} groups its digits
    | \s+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


# ---------------------------------------------------------------- from tokens to markup


@dataclass(frozen=True)
class Atom:
    """One element of MathML, and what its neighbours must know of it."""

    markup: str
    limits: bool = False  # scripts go below and above
    function: bool = False  # a name that wants a thin space before its argument
    bracket: bool = False  # begins with a bracket or a space: no thin space before it
    operator: bool = False  # a sign that follows it is a sign, not an operation: a = -b, (-b)


class _Parser:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, latex):
        self.latex = latex
        self.tokens = [t for t in TOKEN.findall(latex.strip())]
        self.position = 0

    # -- reading tokens

    def refuse(self, what):
        raise UnsupportedMath(f"{what} in the formula  {' '.join(self.latex.split())}")

    def skip_spaces(self):
        while self.position < len(self.tokens) and self.tokens[self.position].isspace():
            self.position += 1

    def peek(self):
        """The next token that is not a space, or None at the end."""
        self.skip_spaces()
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self):
        token = self.peek()
        if token is None:
            self.refuse("something is missing at the end")
        self.position += 1
        return token

    def expect(self, wanted):
        if self.peek() != wanted:
            self.refuse(f"'{wanted}' is missing before '{self.peek() or 'the end'}'")
        return self.take()

    def raw_group(self):
        """The text between braces, as it stands."""
        self.expect("{")
        depth, parts = 1, []
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth == 0:
                return "".join(parts)
            parts.append(token)
        self.refuse("'}' is missing at the end")

    # -- rows and scripts

    def formula(self):
        """The whole formula; lines separated by a line break or an empty line become the rows of a
        table."""
        rows = self.rows(stop=None)
        if not rows:
            self.refuse("nothing")
        if len(rows) > 1:
            return _table("aligned" if max(map(len, rows)) > 1 else "gathered", rows)
        if len(rows[0]) > 1:
            self.refuse("'&' outside an alignment")
        return rows[0][0]

    def rows(self, stop):
        r"""Rows of cells up to the token ``stop`` (or the end): a list of lists of markup."""
        rows = [[""]]
        while True:
            rows[-1][-1] += _join(self.row({"&", "\\\\", stop}))
            token = self.peek()
            if token is None and stop is not None:
                self.refuse(f"'{stop}' is missing at the end")
            if token == stop:
                break
            self.take()
            if token == "&":
                rows[-1].append("")
            else:
                if self.peek() == "[":  # \\[4pt]: the style sheet decides on distances
                    while self.take() != "]":
                        pass
                rows.append([""])
        return [row for row in rows if any(row)]

    def row(self, stops):
        """Atoms up to one of the tokens in ``stops``, which is not taken; signs and spaces as their
        places ask."""
        atoms = []
        while (token := self.peek()) is not None and token not in stops:
            if token in {"}", "&", "\\\\", r"\right", r"\end", r"\middle"}:
                self.refuse(f"'{token}' where it means nothing")
            if token in SIGNS and (not atoms or atoms[-1].operator):
                self.take()
                atom = Atom(f'<mo form="prefix">{SIGNS[token]}</mo>', operator=True)
            else:
                atom = self.scripted()
            if atoms and atoms[-1].function and not atom.bracket:
                atoms.append(Atom(_space(SPACES[","])))
            atoms.append(atom)
        return atoms

    def scripted(self):
        """One atom with its subscript, superscript and primes."""
        base = self.atom() if self.peek() not in {"^", "_", "'"} else Atom("<mrow></mrow>")
        below = above = None
        while (token := self.peek()) in {"^", "_", "'", r"\limits", r"\nolimits"}:
            if token == r"\limits" or token == r"\nolimits":
                self.take()
                base = Atom(base.markup, limits=token == r"\limits", function=base.function)
            elif token == "'":
                primes = ""
                while self.peek() == "'":
                    primes += "′"
                    self.take()
                above = f"<mo>{primes}</mo>" + (above or "")
            elif token == "_":
                self.take()
                if below is not None:
                    self.refuse("two subscripts")
                below = self.argument()
            else:
                self.take()
                if above is not None and "′" not in above:
                    self.refuse("two superscripts")
                above = (above or "") + self.argument()
        if below is None and above is None:
            return base
        under, over, both = (
            ("munder", "mover", "munderover") if base.limits else ("msub", "msup", "msubsup")
        )
        if above is None:
            markup = f"<{under}>{base.markup}{below}</{under}>"
        elif below is None:
            markup = f"<{over}>{base.markup}{_one(above)}</{over}>"
        else:
            markup = f"<{both}>{base.markup}{below}{_one(above)}</{both}>"
        return Atom(markup, function=base.function, operator=base.operator)

    def argument(self):
        """What a command or a script applies to: a group in braces, or the next single thing. One
        element."""
        token = self.peek()
        if token == "{":
            return self.group()
        if token is not None and token[0].isdigit():  # x^10 is x^1 0
            self.take()
            self.tokens[self.position : self.position] = [token[1:]] if token[1:] else []
            return f"<mn>{token[0]}</mn>"
        return self.atom().markup

    def group(self):
        self.expect("{")
        markup = _join(self.row({"}"}), wrap=True)
        self.expect("}")
        return markup

    # -- single things

    def atom(self):
        token = self.take()
        if token == "{":
            self.position -= 1
            return Atom(self.group())
        if token[0].isdigit():
            return Atom(f"<mn>{token.replace('{,}', ',')}</mn>")
        if token in OPENING:
            return Atom(_delimiter(OPENING[token], "prefix"), bracket=True, operator=True)
        if token in CLOSING:
            return Atom(_delimiter(CLOSING[token], "postfix"))
        if token == "/":
            return Atom('<mo lspace="0" rspace="0">/</mo>')
        if token in EITHER:
            return Atom(f'<mo stretchy="false" lspace="0" rspace="0">{EITHER[token]}</mo>')
        if token in PLAIN_OPERATORS:
            return Atom(f"<mo>{escape(PLAIN_OPERATORS[token])}</mo>", operator=token not in "!")
        if token == "." or token == "?":
            return Atom(f"<mtext>{token}</mtext>")
        if token == "~":
            return Atom("<mtext>\N{NO-BREAK SPACE}</mtext>")
        if token.isalpha():
            return Atom(f"<mi>{token}</mi>")
        if token.startswith("\\"):
            return self.command(token[1:])
        self.refuse(f"the character '{token}'")

    def command(self, name):
        if name in GREEK:
            return Atom(f"<mi>{GREEK[name]}</mi>")
        if name in CAPITAL_GREEK:
            return Atom(f'<mi mathvariant="normal">{CAPITAL_GREEK[name]}</mi>')
        if name in SYMBOLS:
            return Atom(f'<mi mathvariant="normal">{escape(SYMBOLS[name])}</mi>')
        if name in OPERATORS:
            return Atom(f"<mo>{OPERATORS[name]}</mo>", operator=True)
        if name in LARGE:
            return Atom(f"<mo>{LARGE[name]}</mo>", limits=True)
        if name in INTEGRALS:
            return Atom(f"<mo>{INTEGRALS[name]}</mo>")
        if name in FUNCTIONS:
            return Atom(f"<mi>{name}</mi>", function=True)
        if name in LIMITS:
            return Atom(
                f'<mo movablelimits="true" lspace="0" rspace="0">{name}</mo>',
                limits=True,
                function=True,
            )
        if name in SPACES:
            return Atom(_space(SPACES[name]), bracket=True)
        if name == " ":
            return Atom("<mtext>\N{NO-BREAK SPACE}</mtext>")
        if name in TEXT:
            return Atom(_text(self.plain(self.raw_group()), TEXT[name]))
        if name in NAMES or name == "operatorname*":
            return self.name(name)
        if name in ALPHABETS:
            return self.alphabet(name)
        if name in {"frac", "dfrac", "tfrac"}:
            markup = f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
            if name != "frac":
                markup = (
                    f'<mstyle displaystyle="{str(name == "dfrac").lower()}"'
                    f' scriptlevel="0">{markup}</mstyle>'
                )
            return Atom(markup)
        if name == "binom":
            markup = f'<mfrac linethickness="0">{self.argument()}{self.argument()}</mfrac>'
            return Atom(_fenced("(", markup, ")"))
        if name == "sqrt":
            return self.root()
        if name in ACCENTS:
            mark = f'<mo stretchy="false">{ACCENTS[name]}</mo>'
            return Atom(f'<mover accent="true">{self.argument()}{mark}</mover>')
        if name in STRETCHED:
            tag, mark = STRETCHED[name]
            return Atom(f'<{tag}>{self.argument()}<mo stretchy="true">{mark}</mo></{tag}>')
        if name in BRACES:
            tag, mark = BRACES[name]
            return Atom(
                f'<{tag}>{self.argument()}<mo stretchy="true">{mark}</mo></{tag}>', limits=True
            )
        if name in {"overset", "underset", "stackrel"}:
            script, base = self.argument(), self.argument()
            tag = "munder" if name == "underset" else "mover"
            return Atom(f"<{tag}>{base}{script}</{tag}>")
        if name == "left":
            return self.stretched()
        if name.rstrip("lrm") in SIZES and name not in {"l", "r", "m"}:
            return self.sized(SIZES[name.rstrip("lrm")])
        if name == "displaystyle":
            return Atom('<mstyle displaystyle="true" scriptlevel="0">' + self.rest() + "</mstyle>")
        if name == "not":
            following = self.take()
            struck = {"=": "≠", r"\in": "∉", "<": "≮", ">": "≯", r"\subset": "⊄", r"\equiv": "≢"}
            if following not in struck:
                self.refuse(rf"'\not{following}'")
            return Atom(f"<mo>{struck[following]}</mo>")
        if name == "begin":
            return self.environment(self.raw_group())
        self.refuse(f"the command '\\{name}'")

    def rest(self):
        """Everything up to the end of the enclosing group, cell or formula."""
        closing = {"}", "&", "\\\\", r"\right", r"\end", r"\middle"}
        return _join(self.row(closing))

    def plain(self, raw):
        """Text as written: escaped characters become themselves, a formula inside is refused."""
        text = (
            re.sub(r"\\([ _%&#${}])", r"\1", raw)
            .replace("~", "\N{NO-BREAK SPACE}")
            .replace("--", "–")
        )
        if "\\" in text or re.search(r"(?<!\\)\$", raw):
            self.refuse(f"'{raw}' inside text")
        return text.replace("{", "").replace("}", "")

    def name(self, command):
        r"""``\mathrm{GiB}``, ``\operatorname{softmax}``, ``\mathtt{zero\_stage}``: letters that are
        one word."""
        raw = self.raw_group()
        text = self.plain(re.sub(r"\\text(?:rm|tt)?(?=\{)", "", raw)).strip()
        if not text:
            self.refuse(rf"nothing in '\{command}'")
        words = escape(text.replace(" ", "\N{NO-BREAK SPACE}"))
        look = NAMES.get(command, "")
        attributes = (f' class="{look}"' if look else "") + (
            ' mathvariant="normal"' if len(text) == 1 else ""
        )
        function = command.startswith("operatorname")
        if command == "operatorname*":
            return Atom(
                f'<mo movablelimits="true" lspace="0" rspace="0">{words}</mo>',
                limits=True,
                function=True,
            )
        return Atom(f"<mi{attributes}>{words}</mi>", function=function)

    def alphabet(self, command):
        capitals, small, digits, apart = ALPHABETS[command]
        letters = ""
        for letter in self.raw_group().strip():
            if letter in apart:
                letters += apart[letter]
            elif "A" <= letter <= "Z":
                letters += chr(capitals + ord(letter) - ord("A"))
            elif "a" <= letter <= "z":
                letters += chr(small + ord(letter) - ord("a"))
            elif "0" <= letter <= "9" and digits:
                letters += chr(digits + ord(letter) - ord("0"))
            else:
                self.refuse(rf"'{letter}' in '\{command}'")
        return Atom(f"<mi>{letters}</mi>")

    def root(self):
        degree = None
        if self.peek() == "[":
            self.take()
            degree = _join(self.row({"]"}), wrap=True)
            self.expect("]")
        radicand = self.argument()
        return Atom(
            f"<msqrt>{radicand}</msqrt>" if degree is None else f"<mroot>{radicand}{degree}</mroot>"
        )

    def bracket(self):
        r"""The delimiter after ``\left``, ``\middle``, ``\right`` or ``\big``; a dot stands for
        none."""
        token = self.take()
        for known in (OPENING, CLOSING, EITHER):
            if token in known:
                return known[token]
        if token == ".":
            return ""
        self.refuse(f"'{token}' as a delimiter")

    def stretched(self):
        left, parts = self.bracket(), []
        while True:
            parts.append(_join(self.row({r"\right", r"\middle"})))
            if self.peek() is None:
                self.refuse(r"'\right' is missing at the end")
            if self.take() == r"\right":
                break
            parts.append(f'<mo stretchy="true" symmetric="true">{self.bracket()}</mo>')
        return Atom(_fenced(left, "".join(parts), self.bracket()), bracket=True)

    def sized(self, size):
        bracket = self.bracket()
        opening = bracket in OPENING.values()
        return Atom(
            f'<mo stretchy="true" symmetric="true" lspace="0" rspace="0" minsize="{size}"'
            f' maxsize="{size}">{bracket}</mo>',
            bracket=opening,
            operator=opening,
        )

    def environment(self, kind):
        if kind in UNWRAPPED:
            rows = self.environment_rows(kind)
            if len(rows) == 1 and len(rows[0]) == 1:
                return Atom(f"<mrow>{rows[0][0]}</mrow>")
            return Atom(_table("aligned", rows))
        if kind not in TABLES:
            self.refuse(f"the environment '{kind}'")
        alignment = None
        if kind == "array":
            alignment = self.raw_group().replace("|", "").replace(" ", "")
            if set(alignment) - set("lcr"):
                self.refuse(f"the columns '{alignment}' of an array")
        elif kind == "alignat":
            self.raw_group()
        rows = self.environment_rows(kind)
        base = "aligned" if kind in ALIGNED else kind.rstrip("*").replace("gathered", "gather")
        base = {
            "gather": "gathered",
            "pmatrix": "matrix",
            "bmatrix": "matrix",
            "vmatrix": "matrix",
        }.get(base, base)
        table = _table(base, rows, alignment)
        return Atom(_fenced(FENCES[kind][0], table, FENCES[kind][1]) if kind in FENCES else table)

    def environment_rows(self, kind):
        rows = self.rows(stop=r"\end")
        self.take()
        if (closed := self.raw_group()) != kind:
            self.refuse(rf"'\begin{{{kind}}}' closed by '\end{{{closed}}}'")
        return rows


def _join(atoms, wrap=False):
    """Markup of several atoms; ``wrap`` makes exactly one element of them."""
    markup = "".join(atom.markup for atom in atoms)
    return markup if wrap and len(atoms) == 1 or not wrap else f"<mrow>{markup}</mrow>"


def _one(markup):
    """Primes followed by a superscript are two elements; a script must be one."""
    return (
        f"<mrow>{markup}</mrow>"
        if markup.startswith("<mo>′") and not markup.endswith("′</mo>")
        else markup
    )


def _space(width):
    return f'<mspace width="{width}"/>'


def _text(text, look):
    spaced = text.replace(" ", "\N{NO-BREAK SPACE}")  # spaces at either end would be dropped
    return (
        f'<mtext class="{look}">{escape(spaced)}</mtext>'
        if look
        else f"<mtext>{escape(spaced)}</mtext>"
    )


def _delimiter(character, form):
    return f'<mo form="{form}" stretchy="false">{character}</mo>'


def _fenced(left, markup, right):
    opening = (
        f'<mo form="prefix" fence="true" stretchy="true" symmetric="true">{left}</mo>'
        if left
        else ""
    )
    closing = (
        f'<mo form="postfix" fence="true" stretchy="true" symmetric="true">{right}</mo>'
        if right
        else ""
    )
    return f"<mrow>{opening}{markup}{closing}</mrow>"


def _table(kind, rows, alignment=None):
    """An ``mtable``; in ``aligned`` columns alternate between right and left, as LaTeX has it."""

    def cell(markup, column):
        # "& - c": an operation, whose left side stands in the cell before
        if kind == "aligned" and column % 2:
            markup = re.sub(r'^<mo(?: form="prefix")?>', '<mo form="infix">', markup)
        side = f' class="{alignment[column]}"' if alignment and column < len(alignment) else ""
        return f"<mtd{side}>{markup}</mtd>"

    body = "".join(
        "<mtr>" + "".join(cell(c, i) for i, c in enumerate(row)) + "</mtr>" for row in rows
    )
    style = ' displaystyle="true"' if kind in {"aligned", "gathered"} else ""
    return f'<mtable class="{kind}"{style}>{body}</mtable>'


# ---------------------------------------------------------------- in a Sphinx build


def _markup(writer, node, latex, display):
    try:
        return to_mathml(latex, display)
    except UnsupportedMath as error:
        logger.warning("%s", error, location=node, type="bookkit", subtype="math")
        return f"<code>{escape(latex)}</code>"


def _visit_inline(writer, node):
    writer.body.append(_markup(writer, node, node.astext(), display=False))
    raise nodes.SkipNode


def _visit_block(writer, node):
    # an empty line starts a new line
    parts = [part for part in node.astext().split("\n\n") if part.strip()]
    math = _markup(writer, node, r" \\ ".join(parts), display=True)
    writer.body.append(writer.starttag(node, "div", CLASS="math-block"))
    writer.body.append(f'<div class="math-scroll">{math}</div>')
    if node["number"]:
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="eqno">({number})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
