"""Sampling with partitioned topology, where each rank has only the edges into its vertices."""
