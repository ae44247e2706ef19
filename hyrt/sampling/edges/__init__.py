"""Weights and features of edges."""
