"""Layers as Scatter, ApplyEdge, Gather and ApplyVertex, read from a user's torch code and fused."""
