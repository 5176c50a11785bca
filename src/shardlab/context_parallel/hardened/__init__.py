"""Context parallelism for any model with the modules of gpt.py, and for long sequences: fused
kernels, and refusals of what trains silently on wrong tokens."""
