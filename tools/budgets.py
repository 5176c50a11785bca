"""The sizes of packages and cores, and the ratchet that holds them: `make check` prints it.

A size is lines of code: no blanks, no comments, no docstrings. `tools/budgets.csv` has a row for
each package and for all cores together: its name, the most lines, and why. A package above its
number fails `make check`, and whoever raises a number says why there. A core has at most 200 lines
of text, because a newcomer reads it. Lines of text are beside the rest for information.
"""

import ast
import csv
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE_LINES = 200  # of text, in one core
CORES = (
    "collective_plans.py",
    "common/collective_wire.py",
    "collectives.py",
    "pipelines/schedules.py",
    "*/core*.py",
    "kernels/*.py",
)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}


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


def code_lines(source: str) -> int:
    """Lines of code: comments, docstrings and empty lines do not count."""
    prose, rows = docstring_rows(source), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT and token.start[0] not in prose:
            rows.update(range(token.start[0], token.end[0] + 1))
    return len(rows)


def parts_of(root: Path) -> dict[str, list[Path]]:
    """Name of a part -> its modules."""
    topics = root / "src" / "coursekit" / "topics"
    shardlab = root / "src" / "shardlab"
    parts = {
        name: sorted((root / "src" / name).rglob("*.py"))
        for name in ("shardlab", "ranklab", "coursekit", "bookkit")
    }
    parts["coursekit"] = [path for path in parts["coursekit"] if topics not in path.parents]
    parts["topics"] = sorted(topics.rglob("*.py"))
    for path in sorted(topics.glob("*/__init__.py")):
        parts[f"topics/{path.parent.name}"] = sorted(path.parent.rglob("*.py"))
    parts["workshop"] = sorted((root / "workshop").rglob("*.py"))
    parts["tests"] = sorted((root / "tests").rglob("*.py"))
    parts["cores"] = sorted({path for pattern in CORES for path in shardlab.glob(pattern)})
    return parts


def main(root: Path = ROOT) -> int:
    """Print the sizes; return how many are over their number."""
    with (root / "tools" / "budgets.csv").open(encoding="utf-8", newline="") as file:
        most = {row["name"]: int(row["most"]) for row in csv.DictReader(file)}
    parts, over = parts_of(root), []
    texts = {path: path.read_text("utf-8") for paths in parts.values() for path in paths}
    code = {path: code_lines(text) for path, text in texts.items()}
    text = {path: len(text.splitlines()) for path, text in texts.items()}
    print(f"budgets: {'part':<34}{'code':>7}{'most':>8}{'of text':>9}")
    for name, paths in parts.items():
        lines = sum((text if name == "cores" else code)[path] for path in paths)
        print(f"  {name:<41}{lines:>7,}{most.get(name, 0):>8,}{sum(map(text.get, paths)):>9,}")
        if lines > most.get(name, 0):
            over.append(f"{name} has {lines:,} lines of code, and {most.get(name, 'no number')}")
    over += [f"tools/budgets.csv has {name}, which is not there" for name in most.keys() - parts]
    for path in parts["cores"]:
        if text[path] > CORE_LINES:
            over.append(f"{path.name}, a core, has {text[path]} lines, over {CORE_LINES}")
    for sentence in over:
        print(f"budgets: {sentence}: cut, or raise the number in tools/budgets.csv and say why.")
    return len(over)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
