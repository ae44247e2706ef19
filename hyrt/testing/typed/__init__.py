"""Checks of devices that support heterogeneous graphs."""
