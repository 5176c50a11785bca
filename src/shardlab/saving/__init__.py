"""Checkpoints that are sharded, failure-atomic and checksummed."""

from .checkpoint import Saved, SaveFailed, resume, save
from .durable import Damaged

__all__ = ["Damaged", "SaveFailed", "Saved", "resume", "save"]
