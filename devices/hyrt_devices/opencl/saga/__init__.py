"""Layers of a user's own on OpenCL devices: their edges are fused loops."""
