"""Chapter 14: long sequences, context parallelism, windows and tiles."""
