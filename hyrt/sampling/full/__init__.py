"""The sampler that samples nothing: every step trains on the whole graph."""
