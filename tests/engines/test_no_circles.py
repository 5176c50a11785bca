"""No module imports itself by way of others, not even inside a function."""

import ast
from graphlib import CycleError, TopologicalSorter

from pages import ROOT
from sources import source

SOURCES = ROOT / "src"
FILES = {
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("shardlab", "ranklab", "coursekit", "bookkit")
    for path in SOURCES.joinpath(package).rglob("*.py")
}


def imported(module, path):
    """The modules of this repository that a module imports, wherever in its text."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in source(path).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        else:
            above = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                yield from [name for name in (inside, base) if name in FILES][:1]


def circle(graph):
    """A circle of the graph, as text; "" where there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_no_circle():
    """Must catch: subset.py that imports render.py inside a function, which imports registry.py,
    which imports subset.py."""
    graph = {module: set(imported(module, path)) - {module} for module, path in FILES.items()}
    within = {"coursekit.formulas.asking", "coursekit.formulas.subset"}
    assert graph["coursekit.formulas.registry"] == within
    assert circle({"a": ["b"], "b": ["a"]})
    assert not circle(graph)
