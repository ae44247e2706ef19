"""Bounded channels, the threads they join, and the guard against a standstill: nothing here knows of graphs."""
