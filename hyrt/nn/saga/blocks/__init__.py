"""Layers of a user's own over sampled blocks."""
