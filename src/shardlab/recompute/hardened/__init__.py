"""The hardened checkpoint: any arguments and outputs, early stops, and refusals. Its idea is in
../core.py."""
