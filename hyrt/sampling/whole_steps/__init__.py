"""Steps whose edges are drawn for all of their targets at once, and mini-batches that are cut out of them."""
