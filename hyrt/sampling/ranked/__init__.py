"""Samplers that rank the neighbours of a vertex by random numbers and keep the first: LABOR, and weighted."""
