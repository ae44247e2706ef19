"""Full-graph steps on devices that hold a few chunks of the graph at a time (NeuGraph, section 3)."""
