"""Chapter 15: mixture of experts."""
