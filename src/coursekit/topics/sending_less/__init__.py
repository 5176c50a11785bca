"""Chapter 16: sending less."""
