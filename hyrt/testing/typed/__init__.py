"""Checks of devices that take mini-batches of typed graphs."""
