"""Measurements that are kept, and ways that are timed in turns.

record.py      `make gpu`: runs all measurements, writes one recording
attempts.py    its parts: one that fails stops no other
races.py       several ways to do the same thing, timed in turns
busy_gpu.py    how long a GPU computed in a call
recordings.py  the files in measured/: the schema, written and read
"""
