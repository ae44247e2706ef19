"""Partitions of a graph: assignment of vertices to parts, and writing and opening parts on disk."""
