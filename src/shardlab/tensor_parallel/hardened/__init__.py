"""The hardened classes: any model that a plan describes, sequence parallelism, and refusals.
The idea of each is in ../core.py."""
