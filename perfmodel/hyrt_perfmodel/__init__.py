"""The analytic performance model of a training step: the sizes of the work and each stage's time."""
