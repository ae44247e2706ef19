"""The sizes that a training step has."""
