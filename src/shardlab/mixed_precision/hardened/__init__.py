"""The hardened classes: any optimizer and loop, a faster variant, and refusals.
The idea of each is in ../core.py."""
