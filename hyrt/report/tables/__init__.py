"""Predictions and explorations as tables, and a picture of one."""
