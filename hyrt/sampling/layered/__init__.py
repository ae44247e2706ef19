"""Samplers of targets that are given what draws the edges of a layer: of a mini-batch, or of a whole step."""
