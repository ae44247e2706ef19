"""The commands that make, inspect and cut datasets."""
