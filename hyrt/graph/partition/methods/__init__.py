"""Partition methods, which assign vertices to parts; one method per file."""
