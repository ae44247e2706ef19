"""Graph objects of other libraries (PyG, DGL), read by their attributes."""
