"""Mid-step checkpoints of full-graph training."""
