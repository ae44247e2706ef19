"""Mini-batches for link prediction, and blocks without the edges to predict."""
