"""The limits of a chip and of its links."""
