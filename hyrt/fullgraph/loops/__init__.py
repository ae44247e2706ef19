"""Edge loops of user-defined and built-in layers over a full graph."""
