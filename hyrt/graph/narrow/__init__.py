"""Feature rows in fewer bytes: their formats, how they are rounded, and the rows themselves."""
