"""A plugin of nbval: the line that ranks show while work is long is no result of a cell.

On a busy machine a cell takes long, the line appears and goes again, and nbval counts it as an
output.
"""

import re

import pytest

PROGRESS = re.compile(r"(\d+ s \| .*)?")


def is_progress(output) -> bool:
    data = output.get("data", {})
    return (
        output.get("output_type") == "display_data"
        and set(data) == {"text/plain"}
        and PROGRESS.fullmatch(data["text/plain"]) is not None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    compare = item.compare_outputs

    def without_progress(test, ref, skip_compare=None):
        return compare([one for one in test if not is_progress(one)], ref, skip_compare)

    item.compare_outputs = without_progress
