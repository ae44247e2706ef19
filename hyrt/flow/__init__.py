"""Bounded channels, stage threads and the watchdog of a pipeline, independent of graphs."""
