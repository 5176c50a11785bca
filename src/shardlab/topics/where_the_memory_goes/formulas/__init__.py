"""The bytes of a training step: what is kept, what comes and goes, and the peak."""

from . import activations, kernels, layout, rank, step, working_sets  # they fill the registry

__all__ = ["activations", "kernels", "layout", "rank", "step", "working_sets"]
