"""Rows of features on the device: codes of narrow formats, and those that it keeps for a whole run."""
