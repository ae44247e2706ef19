"""Edges to be predicted: which of them train, which are held out, and which carry messages."""
