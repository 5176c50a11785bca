"""Solutions of a lab's exercises, from the cells tagged solution: whole for the check, of which it
is the right answer, and half-written for `hint`.

In a half the lines that the blank has already stay. Of the others a reader sees what they begin
with: the names that are assigned, the function that is called, the kind of statement.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from bookkit.learner import has_tag

MAGIC = re.compile(r"\A%%ranks\b.*\n")  # above code that runs on ranks
DOTS = ast.Constant(...)
KEPT = (ast.FunctionDef, ast.ClassDef)


def skeletons(notebook: nbformat.NotebookNode) -> dict[str, dict[str, str]]:
    """topic.exercise -> its "solution", the lab's "imports" for it, and "half" of it where that
    says more than the blank."""
    given, found, modules, imported = {}, {}, {}, {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or has_tag(cell, "install"):
            continue
        source = MAGIC.sub("", cell.source)
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).endswith(".exercises"):
                topic = node.module.split(".")[-2]
                modules |= {name.asname or name.name: (topic, name.name) for name in node.names}
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for name in node.names:
                    imported[name.asname or name.name.split(".")[0]] = _alone(node, name)
        for name, solution in _checked(tree):
            if not has_tag(cell, "solution"):
                given[name] = tree
            elif name in given and name in modules:
                written = _written(tree, solution)
                half = half_written(written, given[name])
                whole = "\n".join(source.splitlines()[_begin(written[0]) : written[-1].end_lineno])
                used = sorted(_free(written) & set(imported))
                imports = "\n".join(imported[name] for name in used)
                entry = {"solution": whole, "imports": imports, "half": half}
                found[".".join(modules[name])] = {k: text for k, text in entry.items() if text}
    return found


def _written(tree: ast.Module, solution: str) -> list[ast.stmt]:
    """The function or class that a cell checks; of a task, whose result is checked, all of it."""
    own = [node for node in tree.body if isinstance(node, KEPT) and node.name == solution]
    rest = (node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom)))
    return own or [node for node in rest if not list(_checked(node))]


def _alone(node: ast.Import | ast.ImportFrom, name: ast.alias) -> str:
    """The import of one name."""
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import([name]))
    return ast.unparse(ast.ImportFrom(node.module, [name], node.level))


def _free(statements: list[ast.stmt]) -> set[str]:
    """The names that statements read, and neither assign nor take as arguments."""
    nodes = [node for one in statements for node in ast.walk(one)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - bound


def _begin(node: ast.stmt) -> int:
    """The line before which a statement begins, with its decorators."""
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ()))) - 1


def half_written(solution: list[ast.stmt], blank: ast.Module) -> str:
    """Statements of a solution, without what a reader writes; empty where that is all of them, or
    none."""
    lines = {ast.dump(node) for node in ast.walk(blank) if isinstance(node, ast.stmt)}
    halves = [_Half(lines).visit(ast.parse(ast.unparse(node)).body[0]) for node in solution]
    told = {ast.dump(node) for half in halves for node in ast.walk(half) if _tells(node)}
    text = "\n".join(map(ast.unparse, halves))
    return text if told - lines and "..." in text else ""


def _tells(node: ast.AST) -> bool:
    """Whether a statement says more than that something is returned or left out."""
    if not isinstance(node, ast.stmt) or isinstance(node, (*KEPT, ast.Pass)):
        return False
    value = getattr(node, "value", None)
    dots = isinstance(value, ast.Constant) and value.value is ...
    return not (dots and isinstance(node, (ast.Return, ast.Expr)))


class _Half(ast.NodeTransformer):
    """Puts dots for the values of statements that are not among the `given` ones."""

    def __init__(self, given: set[str]):
        self.given = given

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and ast.dump(node) in self.given:
            return node
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)):
            if node.value is not None:
                node.value = _begun(node.value)
            return node
        for field in ("test", "iter"):
            if hasattr(node, field) and isinstance(node, ast.stmt):
                setattr(node, field, _begun(getattr(node, field)))
        if isinstance(node, ast.With):
            for item in node.items:
                item.context_expr = _begun(item.context_expr)
        return self.generic_visit(node)


def _begun(value: ast.expr) -> ast.expr:
    """The beginning of a value: the function that is called, else dots."""
    if isinstance(value, ast.Tuple):
        return ast.Tuple([_begun(one) for one in value.elts], ast.Load())
    if isinstance(value, ast.Call) and isinstance(value.func, (ast.Name, ast.Attribute)):
        return ast.Call(value.func, [DOTS] if value.args or value.keywords else [], [])
    return value if isinstance(value, (ast.Name, ast.Constant)) else DOTS


def _checked(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(exercise, solution) of each check, by the names in the cell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check" and node.args:
            exercise, *solution = (getattr(one, "id", "") for one in node.args)
            yield exercise, "".join(solution[:1])


def text_of_skeletons(labs: Path) -> str:
    """The solutions of all labs in a folder, as coursekit carries them."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(labs.glob("*.ipynb")):
        found |= skeletons(nbformat.read(path, as_version=4))
    return json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
