"""Samplers, which build mini-batches around the targets of a step; one file per sampler."""
