"""Chapter 10: activation checkpointing."""
