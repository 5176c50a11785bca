"""Does a model fit one GPU, and how long does it train."""
