"""The report page of a run, and of several beside each other."""
