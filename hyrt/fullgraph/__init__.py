"""Training on whole graphs: exact steps over all vertices, in chunks of rows."""
