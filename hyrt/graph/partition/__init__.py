"""Partitioning of graphs: assignment of vertices to parts, and writing and opening of parts on disk."""
