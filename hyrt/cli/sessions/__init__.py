"""One process's work on a run: alone, or as one of several ranks."""
