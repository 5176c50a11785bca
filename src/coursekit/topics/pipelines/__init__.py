"""Chapter 8: pipelines."""
