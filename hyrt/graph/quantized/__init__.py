"""Quantized feature rows: formats, rounding, row sources and storage in a dataset."""
