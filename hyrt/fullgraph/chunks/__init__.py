"""A step over a whole graph, a few chunks at a time (NeuGraph, section 3)."""
