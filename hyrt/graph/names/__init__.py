"""What the vertices and classes of a dataset are called where it comes from."""
