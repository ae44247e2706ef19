"""Programs that collect runs: each is told of a run's settings, its metrics, and its end."""
