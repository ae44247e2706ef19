"""Placement strategies: pure functions that assign a step's units to ranks; one file per strategy."""
