"""Chapter 13: kernels, fusion, compilation, operators of one's own."""
