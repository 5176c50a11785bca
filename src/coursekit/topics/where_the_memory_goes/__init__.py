"""The bytes of a training step."""
