"""The bytes of a training step: what is kept, what comes and goes, and the peak."""

from . import (  # they fill the registry
    activations,
    adapters,
    layout,
    library_kernels,
    rank,
    rank_at_work,
    step,
    working_sets,
)
