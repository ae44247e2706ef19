"""Sampler of full-graph training: every step uses the full graph."""
