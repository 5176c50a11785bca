"""Tensor parallelism: each layer's weights cut among ranks, and the tokens between them."""
