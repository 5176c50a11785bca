"""Feeding the GPU: token files, a loader that is a function of the step, packing, prefetching."""
