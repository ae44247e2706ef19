"""Setup of a rank's part of a run from the settings: rows, units, edges and gradient sums."""
