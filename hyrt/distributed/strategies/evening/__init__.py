"""Load balancing of seeds among ranks, at the lowest cost in remote rows."""
