"""Expert parallelism with other techniques: see apply.py."""
