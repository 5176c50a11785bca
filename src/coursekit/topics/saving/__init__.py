"""Checkpoints that survive a crash."""
