"""Analytic performance model of a training step: the sizes of its work and the time of each stage."""
