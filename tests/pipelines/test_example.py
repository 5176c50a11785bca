"""examples/pipeline.py, which the chapter prints, on ranks that start in no time."""

from pathlib import Path

import pytest
from forked_script import forked
from night import at_night

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"


def lines(ranks, folder):
    printed, errors, codes = forked(EXAMPLE, ranks=ranks, folder=folder)
    assert codes == [0] * ranks, errors
    return printed.splitlines()


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, *at_night(4)])
def test_as_many_ranks_as_you_like(tmp_path, ranks):
    """Must catch: a gradient that does not cross a cut; a loss that is not divided by the number of
    microbatches; a stage that is left out."""
    alone = lines(1, tmp_path)
    assert lines(ranks, tmp_path) == alone
    first, *_, last = (float(line.rpartition(" ")[2]) for line in alone)
    assert len(alone) == 5 and last < first / 2
