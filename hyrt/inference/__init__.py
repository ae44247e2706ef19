"""Inference: scores and metrics of a trained model, with all or sampled neighbours."""
