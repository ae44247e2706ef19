"""Aggregation of rows in a narrow format, read in place."""
