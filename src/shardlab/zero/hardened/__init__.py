"""The hardened classes: stages 1 to 3, for any model and optimizer that can be sharded, with
offload and refusals. The idea of each is in ../core.py and ../core_stage3.py."""
