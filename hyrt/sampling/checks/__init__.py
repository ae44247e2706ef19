"""Checks of the arguments of samplers, and of neighbours that others sampled."""
