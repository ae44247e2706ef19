"""Checks of what samplers are given, and of what others draw for them."""
