"""The code that torch.compile generates, for lab 13 and page 13."""

import re
from collections.abc import Callable

import torch

SHORT_NAMES = {
    "at::vec::Vectorized<float>": "vector",
    "at::vec::": "",
    "static_cast<int64_t>": "",
    "static_cast<float>": "",
    "int64_t": "long",
}


def generated_code(function: Callable, *inputs) -> str:
    """The code that torch.compile generates for these inputs."""
    from torch._inductor.utils import run_and_get_code  # seconds of imports

    torch.compiler.reset()
    return "\n".join(run_and_get_code(torch.compile(function), *inputs)[1])


def loop_of(function: Callable, *inputs) -> str:
    """The C++ loop that torch.compile generates for these inputs, without its frame and with short
    names for its types."""
    code = generated_code(function, *inputs)
    found = re.search(r"#pragma.*?(?=\n    }\n    inductor|\n    }\n}\n)", code, re.DOTALL)
    lines = (found[0] if found else code).replace("\n        ", "\n")
    lines = re.sub(r"static_cast<int64_t>\((-?\d+)L\)", r"\1", lines)
    for long, short in SHORT_NAMES.items():
        lines = lines.replace(long, short)
    return "\n".join(
        line.replace("    ", "  ") for line in lines.splitlines() if "LIKELY" not in line
    )
