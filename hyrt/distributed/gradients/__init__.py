"""Sums of gradients over all ranks."""
