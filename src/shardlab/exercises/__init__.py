"""What makes a lab a lab: numbers predicted before they are seen, and blanks whose check names the
misconception.

One module a chapter holds its exercises, each with the wrong solutions it must catch.
"""

from .checker import Exercise, Misconception, Verdict, check
from .predictions import Predictions

__all__ = ["Exercise", "Misconception", "Predictions", "Verdict", "check"]
