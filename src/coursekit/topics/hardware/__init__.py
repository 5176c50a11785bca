"""What a chip and its links can do."""
