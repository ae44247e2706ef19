"""Grid of vertex intervals and edge chunks (NeuGraph, section 3.1)."""
