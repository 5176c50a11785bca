"""Kernels: bytes moved, a tile language that runs Triton's source on the CPU, losses in parts."""
