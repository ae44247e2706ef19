"""Checks that a model can be trained on a device, and on a graph."""
