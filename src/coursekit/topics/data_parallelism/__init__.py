"""A copy of the model on every rank."""
