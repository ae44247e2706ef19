"""Sizes of heterogeneous mini-batches, per relation."""
