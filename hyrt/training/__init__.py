"""Training runs from the first step to the last, and checkpoints to resume from."""
