"""Predictions and checks of labs: a number is predicted before it is shown, and the check of a
blank names the misconception.

Each topic has a module of exercises, each exercise with the wrong solutions that its check must
catch.
"""

from .checker import Exercise, Misconception, Verdict, check
from .hints import hint
from .predictions import Predictions

__all__ = ["Exercise", "Misconception", "Predictions", "Verdict", "check", "hint"]
