"""Counts what a run really holds and sends. Import the parts: `from shardlab.measure.ledger import
Ledger`."""
