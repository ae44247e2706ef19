"""The analytic performance model of a training step: sizes of the work, and the time each stage needs at least."""
