"""Neighbour sampling per relation, and the edges of a block by relation."""
