"""Calibration: measurements of this machine from which the performance model predicts runs."""
