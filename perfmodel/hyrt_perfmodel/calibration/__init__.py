"""Rates fitted to measurements."""
