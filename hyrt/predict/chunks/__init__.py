"""Prediction of full-graph training in chunks: its schedule, and the arrays on the host."""
