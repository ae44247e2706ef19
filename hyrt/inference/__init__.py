"""Scores of a trained model, and metrics of them, over all neighbours or sampled ones."""
