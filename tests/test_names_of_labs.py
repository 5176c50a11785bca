"""Every name that a lab asks of our modules is there: by day most labs do not run."""

import ast
from importlib import import_module
from types import ModuleType

import nbformat
import pytest
from test_lab_form import python_of
from test_labs import LABS, code_cells

OURS = {"shardlab", "ranklab", "coursekit"}


def missing_names(source: str) -> list[str]:
    """Names of our modules that the code imports, or takes from an imported module, in vain."""
    tree, modules, missing = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in OURS:
            for alias in node.names:
                try:
                    exec(f"from {node.module} import {alias.name} as found", taken := {})
                except ImportError:
                    missing.append(f"{node.module}.{alias.name}")
                else:
                    modules[alias.asname or alias.name] = taken["found"]
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0] in OURS]
            modules |= {one.asname: import_module(one.name) for one in ours if one.asname}
    modules = {name: one for name, one in modules.items() if isinstance(one, ModuleType)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                missing.append(f"{module.__name__}.{node.attr}")
    return missing


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)
def test_what_labs_ask_of_our_modules_is_there(lab):
    """Must catch: an option, a class or a module that went while a lab still names it, as
    clock.Clock of lab 10."""
    cells = code_cells(nbformat.read(lab, as_version=4))
    assert missing_names("\n".join(python_of(cell.source) for cell in cells)) == []


def test_a_name_that_went_is_found():
    """Must catch: a check that looks at no import, or at no attribute of a module."""
    assert missing_names("from ranklab.measure import clock\nclock.Clock()") == [
        "ranklab.measure.clock.Clock"
    ]
    assert missing_names("from shardlab import nothing") == ["shardlab.nothing"]
