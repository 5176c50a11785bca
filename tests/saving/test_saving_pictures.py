"""The pictures of Saving: what the code leaves at each phase, and which rank reads which
elements."""

import pytest
import torch
from torch import nn

from coursekit.topics.saving import pictures
from shardlab import saving
from shardlab.saving import checkpoint
from shardlab.saving.folders import saves
from shardlab.saving.resharding import FlatParameters, Layout
from shardlab.zero.hardened.flat import chunk_of


class Killed(Exception):
    """Stands for the end of the process."""


def save_until(folder, phase):
    """On a rank: save step 1 whole, then step 2 until `phase`, a number in SAVE_PHASES, begins;
    the newest save that is there afterwards."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saving.save(folder, model, optimizer, 1)
    flushed = []
    real = {name: getattr(checkpoint, name) for name in ("write", "write_json", "flush_folder")}

    def stop(*args, **kwargs):
        raise Killed

    def second_flush(path):
        flushed.append(path)
        if len(flushed) == 2:
            raise Killed
        return real["flush_folder"](path)

    rename, remove = checkpoint.os.rename, checkpoint.shutil.rmtree
    try:
        if phase == 0:
            checkpoint.write = stop
        elif phase == 1:
            checkpoint.write_json = stop
        elif phase == 2:
            checkpoint.os.rename = stop
        elif phase == 3:
            checkpoint.flush_folder = second_flush
        else:
            checkpoint.shutil.rmtree = stop
        try:
            saving.save(folder, model, optimizer, 2, keep=1)
        except (Killed, saving.SaveFailed):
            pass
    finally:
        checkpoint.os.rename, checkpoint.shutil.rmtree = rename, remove
        for name, function in real.items():
            setattr(checkpoint, name, function)
    return saves(folder)[0].name


def test_what_can_be_read_after_each_phase(worlds, tmp_path):
    """Must catch: the rename before the manifest; the old save removed before the new one has its
    name."""
    for phase, (_, found) in enumerate(pictures.SAVE_PHASES):
        (newest,) = worlds(1).run(save_until, tmp_path / str(phase), phase)
        assert newest == {pictures.OLD_SAVE: "step-1", pictures.NEW_SAVE: "step-2"}[found]


def test_pieces_are_those_that_a_rank_reads():
    """Must catch: chunks of unequal ends, a piece that two ranks read, files in another order."""
    layout = Layout([[["w", [pictures.DRAWN_ELEMENTS]]]], pictures.DRAWN_FILES)
    want = []
    for rank in range(pictures.DRAWN_RANKS):
        held = chunk_of(rank, pictures.DRAWN_ELEMENTS, pictures.DRAWN_RANKS)
        flat = FlatParameters([["w", [pictures.DRAWN_ELEMENTS]]], [], held, [], None)
        want += [(piece.rank, rank, piece.elements) for piece in layout.pieces(flat)]
    found = [(file, rank, len(both)) for file, rank, both in pictures.drawn_pieces()]
    assert sorted(found) == sorted(want)
    assert sum(count for *_, count in found) == pictures.DRAWN_ELEMENTS


@pytest.mark.parametrize("elements, parts", [(40, 8), (40, 5), (7, 3), (2, 4)])
def test_chunks_are_cut_as_shards_are(elements, parts):
    """Must catch: the odd elements in the last part."""
    want = [chunk_of(part, elements, parts) for part in range(parts)]
    assert pictures.even_chunks(elements, parts) == want
