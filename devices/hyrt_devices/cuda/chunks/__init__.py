"""Whole graphs in chunks on torch devices, by torch's own operators over memory that is taken once."""
