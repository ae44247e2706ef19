"""Settings of the built-in samplers, with one file per sampler."""
