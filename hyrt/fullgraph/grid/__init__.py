"""A whole graph cut into intervals of vertices and chunks of edges (NeuGraph, section 3.1)."""
