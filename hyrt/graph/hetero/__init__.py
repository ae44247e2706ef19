"""Heterogeneous graphs: vertex types, relations, feature tables, and their assembly."""
