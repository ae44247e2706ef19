"""Analytic performance model of a training step: workload sizes and the time of each stage."""
