"""Predictions and explorations as tables, and a plot of one."""
