"""Python imports this module at its start where this folder is on the PYTHONPATH."""

from pretended import pretend_when_torch_comes

pretend_when_torch_comes()
