"""Graphs that other libraries hold in memory, read by their attributes."""
