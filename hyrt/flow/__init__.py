"""Bounded channels, the threads they join, and the guard against a standstill: it knows nothing of graphs."""
