"""The messages of collectives, and what they cost."""
