"""Metrics and traces of the ranks of a distributed run."""
