"""Questions of grading to the text of a learner's file before it runs: whether it can be read and
compiles, whether it imports what it is to build, and which parts are not written yet.

The rules are a reminder for those who work by them, and no proof: Python has more ways to reach a
module than a look at the text can find."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from .assignments import Assignment, CannotGrade

SOURCE_CHARACTERS = 200_000
# by these a file reaches a module without an import that can be read
UNSEEN = ("__import__", "exec", "eval", "__builtins__")
OF_THE_BOOK = ("shardlab", "ranklab", "coursekit", "assignments")
UNSEEN_OF = ("builtins", "importlib", "runpy", "pkgutil", "sys.modules")


def read_source(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise CannotGrade(f"{path} is not a file.")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotGrade(f"{path} cannot be read: {error}.") from None
    if len(source) > SOURCE_CHARACTERS:
        most = f"an assignment has at most {SOURCE_CHARACTERS:,}"
        raise CannotGrade(f"{path} has {len(source):,} characters: {most}.")
    return source


def rules_broken(asked: Assignment, source: str, path: str) -> Iterator[str]:
    """Sentences about the text: it does not compile, or takes what it is to build."""
    try:
        tree = ast.parse(source, path)
        compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        yield f"{path}{where}: {getattr(error, 'msg', error)}: Python cannot read the file."
        return
    for line, name in sorted(set(names_used(tree))):
        if _within(name, asked.forbidden):
            yield f"line {line} uses {name}, which this assignment is to build: see its rules."
        elif _within(name, OF_THE_BOOK) and not _within(name, asked.may_import):
            also = f" and {', '.join(asked.may_import)}" if asked.may_import else ""
            yield f"line {line} imports {name}: the file may import PyTorch{also}."
        elif name in UNSEEN or _within(name, UNSEEN_OF):
            yield f"line {line} uses {name}: write an import statement, which a reader can see."


MAKERS = "__init__", "forward"  # how a class begins, and an autograd.Function


def unwritten(source: str) -> dict[str, int]:
    """Functions and classes that are as in the skeleton, each with the line of its
    NotImplementedError: a function that raises nothing else, a class that no call can make."""
    found = {}
    for node in ast.parse(source).body:
        body = node
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            body = next((each for each in methods if each.name in MAKERS), None)
        if isinstance(body, ast.FunctionDef) and (line := _line_of_todo(body)):
            found[node.name] = line
    return found


def _line_of_todo(function: ast.FunctionDef) -> int:
    """The line of `raise NotImplementedError` if the function does nothing else, or 0; a class of
    PyTorch's has its super().__init__() before."""
    docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[docstring:]
    statements = [line for line in body if ast.unparse(line) != "super().__init__()"]
    if len(statements) != 1 or not isinstance(statements[0], ast.Raise):
        return 0
    raised = statements[0].exc
    raised = raised.func if isinstance(raised, ast.Call) else raised
    is_todo = isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return statements[0].lineno if is_todo else 0


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports, of attributes of what it imports, and of the
    names in UNSEEN."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or whole] = whole
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := _dotted(node, known)):
            yield node.lineno, name
        elif isinstance(node, ast.Name) and node.id in UNSEEN:
            yield node.lineno, node.id


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value, known)):
        return f"{base}.{node.attr}"
    return ""


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
