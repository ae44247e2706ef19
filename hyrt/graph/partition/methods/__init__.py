"""Partition methods, which assign vertices to parts; one file per method."""
