"""Parameters, states and training time of a model."""

from . import model, states, time  # they fill the registry
