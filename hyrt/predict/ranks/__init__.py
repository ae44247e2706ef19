"""Prediction of distributed runs: traffic, expected or counted, and epoch time."""
