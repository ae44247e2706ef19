"""Samplers, which turn the targets of a step into mini-batches; one file per sampler."""
