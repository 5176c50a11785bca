"""Figures and widgets over formulas and measurements."""
