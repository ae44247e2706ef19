"""What the stages of a step take: the terms of the performance model, and the assignment that they favour."""
