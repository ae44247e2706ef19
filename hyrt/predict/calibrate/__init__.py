"""Calibration: measurements of a machine for the performance model."""
