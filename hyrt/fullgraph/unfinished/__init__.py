"""Steps over a whole graph that are stopped in the middle, and go on from there."""
