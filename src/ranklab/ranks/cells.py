"""Running a notebook's cell in a rank."""

import ast
import linecache


def run_source(source: str, name: str, variables: dict):
    """Run as in a notebook; the last line's value is printed."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    tree = ast.parse(source, name)
    ends_in_a_value = tree.body and isinstance(tree.body[-1], ast.Expr)
    last = ast.Expression(tree.body.pop().value) if ends_in_a_value else None
    exec(compile(tree, name, "exec"), variables)
    if last is not None:
        value = eval(compile(last, name, "eval"), variables)
        if value is not None:
            print(repr(value))
