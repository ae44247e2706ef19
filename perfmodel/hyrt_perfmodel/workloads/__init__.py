"""Sizes of a training step's work."""
