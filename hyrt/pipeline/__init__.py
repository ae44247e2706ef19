"""The four stages of a step, sample, load, transfer and propagate, and its end: synchronize."""
