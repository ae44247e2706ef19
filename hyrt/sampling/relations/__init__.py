"""Neighbours drawn along each relation, and the edges of a block by relation."""
