"""Layers with separate weights per relation."""
