"""Sizes of mini-batches of typed graphs, relation by relation."""
