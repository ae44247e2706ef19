"""Checks of installed software: packages, backends, drivers and hyrt's caches."""
