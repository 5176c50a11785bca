"""The hardened classes: zero-bubble schedules, tied weights, padding, loss scalers, and refusals.
The idea of each is in ../core.py."""
