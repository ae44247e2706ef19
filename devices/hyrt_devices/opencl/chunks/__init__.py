"""Whole graphs in chunks: the device holds some intervals of rows and the edges between two of them."""
