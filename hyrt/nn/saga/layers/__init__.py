"""Built-in layers that are written as a user's own."""
