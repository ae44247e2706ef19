"""GNNs for link prediction."""
