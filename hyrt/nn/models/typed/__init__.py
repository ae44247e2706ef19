"""Model kinds for heterogeneous graphs."""
