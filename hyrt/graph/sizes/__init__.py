"""Counts of a graph from which the performance model expects the sizes of mini-batches."""
