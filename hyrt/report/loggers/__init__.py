"""Experiment loggers, which receive a run's settings, metrics and final status."""
