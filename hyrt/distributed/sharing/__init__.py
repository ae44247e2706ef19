"""From settings to a rank's part of a run: its rows, its units, its edges, its sums."""
