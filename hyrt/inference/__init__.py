"""Inference: scores and metrics of a trained model, with full or sampled neighbourhoods."""
