"""The ``{law}`` role: a short formula for people, which the registry has to confirm.

    {law}`4*parameters + 12*parameters/data_parallel = zero_states_bytes(zero_stage=1, ...)`

prints 4Ψ + 12Ψ/d, in the registry's symbols. Quantities on the left that the call does not give
take several values each. Where the two sides differ by more than a hundredth,
the build stops: so a cheatsheet cannot say what the formulas do not.
"""

import ast
from itertools import product

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from bookkit.cards import warn
from bookkit.formulas import MISTAKES, read_call
from coursekit.formulas import BOOK, evaluate

DIFFERENCE = 0.01  # of the larger side: norms' statistics and a step counter are left out
LARGE = {  # quantities whose values are no degrees
    "parameters": (2**33, 2**36),
    "tokens": (10**11, 10**13),
    "sequence": (2048, 8192),
    "hidden": (4096, 16_384),
    "flops_per_second": (312e12, 989e12),
    "link_bytes_per_second": (50e9, 450e9),
    "utilisation": (0.3, 0.6),
    "message_elements": (2**24, 2**30),
    "microbatches": (16, 64),
    "pipeline_rank": (0, 1),
    "node_bytes_per_second": (300e9, 450e9),
}
DEGREES = (2, 4, 8)
SIGNS = {ast.Add: " + ", ast.Sub: " - ", ast.Mult: r"\,"}


def confirm(left, call, named=None):
    """Raises ValueError if the expression `left` and the formula's `call` differ."""
    name, given, _, _ = read_call(call, named)
    tree = ast.parse(left, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    free = sorted(names - given.keys())
    for values in product(*(LARGE.get(one, DEGREES) for one in free)):
        sample = dict(zip(free, values))
        right = evaluate([name], allow_unused=True, **given, **sample)[name]
        said = eval(compile(tree, "law", "eval"), {"__builtins__": {}}, {**given, **sample})
        if abs(said - right) > DIFFERENCE * max(abs(said), abs(right)):
            raise ValueError(f"{left} = {said:.6g}, but {call} = {right:.6g}, for {sample}")


def typeset(node, outer=0):
    """LaTeX of an expression; `outer` is how strongly what stands around it binds."""
    if isinstance(node, ast.Expression):
        return typeset(node.body)
    if isinstance(node, ast.Name):
        return BOOK.find(node.id).symbol
    if isinstance(node, ast.Constant):
        return str(node.value)
    binds = 1 if isinstance(node.op, (ast.Add, ast.Sub)) else 2
    if isinstance(node.op, ast.Div):
        text = f"{typeset(node.left, 2)} / {typeset(node.right, 3)}"
    else:
        right = binds + isinstance(node.op, ast.Sub)
        text = typeset(node.left, binds) + SIGNS[type(node.op)] + typeset(node.right, right)
    return rf"({text})" if binds < outer else text


class LawRole(SphinxRole):
    def run(self):
        left, _, call = self.text.partition(" = ")
        try:
            confirm(left, call, self.env.temp_data.get("bookkit_given"))
        except MISTAKES as wrong:
            warn(self.get_location(), "law", f"{self.text}: {wrong}")
            return [nodes.literal(self.text, self.text)], []
        text = typeset(ast.parse(left, mode="eval"))
        return [nodes.math(text, text)], []


def setup(app):
    app.add_role("law", LawRole())
