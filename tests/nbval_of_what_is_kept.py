"""A plugin of the pytest that runs a lab with nbval: a run is compared in what a stored lab keeps
(`bookkit.lab_pages.kept`), and without the line of progress that ranks show while work is long. A
notebook takes that line away; nbval keeps what a cell has displayed. Plotly 5, which Colab has,
shows once the script that HTML needs, and its JSON names a server: stored labs have neither."""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # as in conftest.py
from nbval.plugin import IPyNbCell  # noqa: E402

from bookkit.lab_pages import kept  # noqa: E402
from ranklab.ranks.output import PROGRESS  # noqa: E402

PLOTLY, SCRIPT = "application/vnd.plotly.v1+json", "window.PlotlyConfig"
compare = IPyNbCell.compare_outputs


def compare_what_is_kept(self, test, ref, skip_compare=None):
    stays = [output for output in test if output.get("metadata") != PROGRESS]
    for output in stays:
        data = output.get("data", {})
        if SCRIPT in data.get("text/html", ""):
            data.pop("text/html", None)
        data.get(PLOTLY, {}).pop("config", None)
    return compare(self, kept(stays), ref, skip_compare)


IPyNbCell.compare_outputs = compare_what_is_kept
