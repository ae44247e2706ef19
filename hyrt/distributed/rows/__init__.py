"""Feature rows of a part, and how a rank gets those of the others."""
