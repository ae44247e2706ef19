"""Predicting a run on several ranks: what travels, expected or counted, and what the epoch takes."""
