"""Shards of states, gradients and parameters."""
