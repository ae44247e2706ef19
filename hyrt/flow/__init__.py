"""Bounded channels between threads, and the guard against a standstill. Nothing here knows of graphs."""
