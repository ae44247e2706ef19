"""Modules of the user's own: what they return is checked, and what they raise is explained."""
