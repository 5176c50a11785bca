"""The hardened classes: any arguments and outputs, early stops, and refusals.
The idea of each is in ../core.py."""
