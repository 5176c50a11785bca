"""Checkpoints that are sharded, failure-atomic and checksummed.

    checkpoint.py    save() and resume(): each rank writes its shards, and a save is whole or absent
    parts.py         which ranks hold the same, and what: checked before anything is written
    resharding.py    the same run in other shards: on more or fewer ranks, in another stage
    states.py        what is saved besides shards, and the checks of a manifest
    durable.py       files that are on the disk, with checksums
    folders.py       which saves are whole, and the names of their files
    together.py      all ranks or none: if one cannot write, every rank says why

save(), resume() and their errors are names of this package.
"""

from .checkpoint import Saved, resume, save
from .durable import Damaged
from .together import SaveFailed
