"""A training run from its first step to its last, and the checkpoints it goes on from."""
