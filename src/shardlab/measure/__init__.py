"""Counts the bytes that a run holds and sends. Import the parts: `from shardlab.measure.ledger
import Ledger`."""
