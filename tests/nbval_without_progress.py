"""A plugin of the pytest that runs a lab with nbval: the line of progress, which ranks show while
work is long, is no output to compare. A notebook takes the line away; nbval keeps what a cell has
displayed."""

from nbval.plugin import IPyNbCell

from shardlab.ranks.output import PROGRESS

compare = IPyNbCell.compare_outputs


def compare_what_stays(self, test, ref, skip_compare=None):
    stays = [output for output in test if output.get("metadata") != PROGRESS]
    return compare(self, stays, ref, skip_compare)


IPyNbCell.compare_outputs = compare_what_stays
