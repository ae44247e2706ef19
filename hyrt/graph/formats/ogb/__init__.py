"""Files of the ogb package, and its heterogeneous datasets."""
