"""Prediction of full-graph training in chunks: its schedule, and the arrays that stay on the host."""
