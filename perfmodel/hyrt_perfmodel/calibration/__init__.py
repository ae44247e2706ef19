"""Rates fitted to what was measured."""
