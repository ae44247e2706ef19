"""Names of the vertices, classes, columns and edge types of a dataset."""
