"""Tasks of the trainer: memory layout, arena capacity and result."""
