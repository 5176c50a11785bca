"""The package's files as tests read them. A file is parsed and walked once for all of them, and the
tree is thrown away: trees of the whole package would be 200 MB."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import dedent


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@dataclass
class Source:
    """One file, as far as tests ask."""

    # wherever they stand, in functions too
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    # the classes, functions and constants at its top level
    public: set[str] = field(default_factory=set)
    # whatever it defines or assigns anywhere, attributes of self and cls too
    defines: set[str] = field(default_factory=set)
    # `a._b`, and all of getattr(a, "b") and setattr(a, "b", c)
    reaches: list[ast.Attribute | ast.Call] = field(default_factory=list)
    # Python in a text that imports torch, such as what another process runs
    scripts: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> "Source":
        tree, found = ast.parse(text), cls()
        found.public = public_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found.imports.append(node)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.defines.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.defines.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") in (
                    "self",
                    "cls",
                ):
                    found.defines.add(node.attr)
                if is_private(node.attr):
                    found.reaches.append(node)
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if called in ("getattr", "setattr", "delattr", "hasattr") and len(node.args) > 1:
                    found.reaches.append(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if "import torch" in node.value or "from torch" in node.value:
                    found.scripts += [dedent(node.value)] * is_python(node.value)
        return found


@cache
def source(path: Path) -> Source:
    """Nobody may change it."""
    return Source.of(path.read_text(encoding="utf-8"))


def imported(path: Path, sources: Path) -> Iterator[tuple[str, list[str]]]:
    """(module, the names that are taken from it) of each import in a file below `sources`, with
    dotted names, inside functions too; the names are empty where it is the module itself."""
    package = path.relative_to(sources).with_suffix("").parts[:-1]
    for node in source(path).imports:
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        else:
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield module, [alias.name for alias in node.names]


def is_python(text: str) -> bool:
    try:
        return bool(ast.parse(dedent(text)).body)
    except SyntaxError:
        return False


def public_names(module: ast.Module) -> set[str]:
    """The classes, functions and constants that a module defines at its top level."""
    found = set()
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = [name for target in targets for name in ast.walk(target)]
            found |= {
                name.id
                for name in inside
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
    return {name for name in found if not name.startswith("_")}
