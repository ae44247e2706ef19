"""Import of heterogeneous datasets from tables of several vertex types and relations."""
