"""Mini-batches of links: the pairs of a step, and blocks without the edges that are to be predicted."""
