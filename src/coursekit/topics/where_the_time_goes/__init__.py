"""Chapter 11: where the time goes."""
