"""Dry run of a full-graph step: sizes, matrices and work."""
