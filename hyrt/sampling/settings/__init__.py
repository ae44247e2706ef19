"""Settings of the built-in samplers; one file per sampler."""
