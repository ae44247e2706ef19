"""Work of one process on a run, alone or as one of several ranks."""
