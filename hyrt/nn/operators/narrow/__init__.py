"""Aggregation of quantized rows, read in place."""
