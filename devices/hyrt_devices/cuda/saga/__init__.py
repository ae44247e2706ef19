"""Layers of a user's own on CUDA devices: their edges are fused loops."""
