"""Predictions of whole graphs in chunks: their schedule, and what stays on the host."""
