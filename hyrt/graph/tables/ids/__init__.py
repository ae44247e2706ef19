"""Vertex ids in tables, and their mapping to vertex numbers."""
