"""What a model is trained for and judged by."""
