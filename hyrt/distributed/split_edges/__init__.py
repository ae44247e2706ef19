"""Sampling where each rank has the edges into its own vertices alone."""
