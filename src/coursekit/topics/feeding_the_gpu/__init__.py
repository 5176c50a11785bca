"""Chapter 12: feeding the GPU."""
