"""Checkpoints that are sharded, failure-atomic and checksummed."""

from .checkpoint import Saved, resume, save
from .durable import Damaged
from .together import SaveFailed

__all__ = ["Damaged", "SaveFailed", "Saved", "resume", "save"]
