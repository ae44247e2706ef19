"""Vertex labels: kinds, checks, and conversion from other libraries."""
