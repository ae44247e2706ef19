"""Work of a run on a heterogeneous graph."""
