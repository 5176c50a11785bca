"""The techniques, formulas and measurements of the book "Split, Shard, Recompute".

Importing the package is light: no torch, no SymPy. Import the module you need: `from shardlab.gpt
import GPT`.
"""

__version__ = "0.1.0"
