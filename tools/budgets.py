"""How long the code is, and how long it should be: `make check` prints it.

A budget is a question, not a gate. A file of the shelf holds one idea, so it has at most 200 lines
as `ruff format` lays them out at 100 columns; a file that needs more says why in REASONS, and
without a reason `make check` fails. A line of the shelf has at most 10 tokens on average. The rest
is printed for whoever reviews a change: an instrument or an engine grows with a reason in the
commit, and a topic has about 1,000 lines.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "shardlab"
INSTRUMENTS = ("measure", "ranks", "virtual", "common/torch_internals.py")
DOORS = ("__init__.py", "__main__.py")
LINES = 200
MORE_LINES = {"gpt.py": 300, "data_parallel/ladder.py": 300}
TOKENS_PER_LINE = 10
TOPIC_LINES = 1000
CORE_LINES = 2_000  # of all cores together; none has a reason to be over LINES
CORES = (
    "collective_plans.py",
    "collective_wire.py",
    "collectives.py",
    "pipelines/schedules.py",
    "*/core*.py",
)
# Lines of a whole package; coursekit is counted without its topics.
PACKAGE_LINES = {"shardlab": 12_000, "coursekit": 8_500, "bookkit": 5_000}

# File of the shelf -> why it is over its budget.
REASONS = {
    "saving/checkpoint.py": "a save that cannot be half done checks each way in which it can fail",
    "saving/resharding.py": "three layouts of shards, each cut out of what was saved as another",
}

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# Python 3.12 takes an f-string apart, older ones do not: here it is one token.
F_STRING_START = getattr(tokenize, "FSTRING_START", None)
F_STRING_END = getattr(tokenize, "FSTRING_END", None)


def docstring_rows(source: str) -> set[int]:
    """Rows of all docstrings."""
    rows = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                rows.update(range(value.lineno, value.end_lineno + 1))
    return rows


def tokens_and_rows(source: str) -> tuple[int, int]:
    """Tokens and lines of code: comments, docstrings and empty lines are neither."""
    prose = docstring_rows(source)
    tokens, rows, depth = 0, set(), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in prose:
            continue
        rows.update(range(token.start[0], token.end[0] + 1))
        depth -= token.type == F_STRING_END
        tokens += depth == 0 and token.type != F_STRING_END
        depth += token.type == F_STRING_START
    return tokens, len(rows)


def lines(path: Path) -> int:
    """Lines of a module, or of all modules of a package."""
    modules = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(module.read_text(encoding="utf-8").splitlines()) for module in modules)


def shelf(package: Path) -> list[Path]:
    """The files that chapters print and people come to read: shardlab without its instruments."""
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if not path.relative_to(package).as_posix().startswith(INSTRUMENTS)
        and path.name not in DOORS
    ]


def main(package: Path = PACKAGE, reasons: dict[str, str] = REASONS) -> int:
    """Prints the sizes; returns how many budgets are exceeded without a reason."""
    unexplained, all_tokens, all_rows = 0, 0, 0
    print("budgets: the shelf, lines and tokens per line of code")
    for path in shelf(package):
        name, count = path.relative_to(package).as_posix(), lines(path)
        tokens, rows = tokens_and_rows(path.read_text(encoding="utf-8"))
        all_tokens, all_rows = all_tokens + tokens, all_rows + rows
        print(f"  {name:<38}{count:>6,}{tokens / max(rows, 1):>6.1f}")
        most = MORE_LINES.get(name, LINES)
        if count > most and name not in reasons:
            unexplained += 1
            print(f"    over {most}: split it, or say why in tools/budgets.py")
        elif count > most:
            print(f"    over {most}: {reasons[name]}")
        elif name in reasons:
            print("    within its budget: its reason in tools/budgets.py can go")
    average = all_tokens / max(all_rows, 1)
    print(f"  {'all of the shelf':<38}{sum(map(lines, shelf(package))):>6,}{average:>6.1f}")
    if average > TOKENS_PER_LINE:
        unexplained += 1
        print(
            f"    over {TOKENS_PER_LINE} tokens per line of code: give each idea a line of its own"
        )
    course = package.parent / "coursekit"
    cores = sum(lines(path) for pattern in CORES for path in package.glob(pattern))
    print(f"  {'the cores among them':<38}{cores:>6,} of {CORE_LINES:,}")
    if cores > CORE_LINES:
        unexplained += 1
        print("    over it: the techniques are to fit in a head")
    print("budgets: the instruments of shardlab, and the engines of coursekit")
    engines = [path.parent for path in sorted(course.glob("*/__init__.py"))]
    for part in [package / name for name in INSTRUMENTS] + engines:
        if part.exists() and part.name != "topics":
            print(f"  {part.name:<28}{lines(part):>6,}")
    print(f"budgets: the topics, about {TOPIC_LINES:,} lines each")
    for path in sorted((course / "topics").glob("*/__init__.py")):
        print(f"  {path.parent.name:<28}{lines(path.parent):>6,}")
    print("budgets: the packages")
    for name, most in PACKAGE_LINES.items():
        topics = lines(course / "topics") if name == "coursekit" else 0
        print(f"  {name:<28}{lines(package.parent / name) - topics:>6,} of {most:,}")
    return unexplained


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
