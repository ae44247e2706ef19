"""Measuring a machine for the performance model."""
