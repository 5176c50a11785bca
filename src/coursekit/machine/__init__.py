"""This machine.

capabilities.py  the abilities that a lab needs, found by trying
units.py         the types of numbers that it multiplies, and in which units
doctor.py        whether labs run here, and what to do if not
apart.py         work in a process of its own, which ends in bounded time
regular_file.py  JSON that somebody else wrote
"""
