"""Edge loops of built-in and user-defined layers over a full graph."""
