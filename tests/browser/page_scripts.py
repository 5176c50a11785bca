"""Scripts that tests run on a page, as JavaScript: each constant of a file beside this one."""

import re
from pathlib import Path
from types import SimpleNamespace


def page_scripts(name: str) -> SimpleNamespace:
    text = Path(__file__).with_name(f"{name}.js").read_text("utf-8")
    found = re.findall(r"^const (\w+) = (.*?);$\n(?=\n|\Z)", text, re.M | re.S)
    return SimpleNamespace(**dict(found))
