"""Attention along the edges of relations."""
