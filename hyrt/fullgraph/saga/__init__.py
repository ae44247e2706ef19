"""The gathering of a user's own layers over a whole graph."""
