"""Layers that compute a function for each relation."""
