"""Placement strategies: pure functions that assign a step's seeds to ranks; one file per strategy."""
