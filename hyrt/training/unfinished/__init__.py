"""Keeping what is done of a long step in a run's folder."""
