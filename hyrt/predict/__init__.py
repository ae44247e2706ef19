"""Prediction of runs on this or other machines before they start, and choice of devices and formats."""
