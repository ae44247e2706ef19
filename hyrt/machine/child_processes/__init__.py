"""Isolated worker process for code that may crash or hang, and a report of unexpected exits."""
