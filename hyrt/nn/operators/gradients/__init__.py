"""Compiled loops that only backward passes use."""
