"""Builds with Vitis: the files they are made from, and what they report."""
