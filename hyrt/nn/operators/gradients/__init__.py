"""Compiled loops of backward passes alone."""
