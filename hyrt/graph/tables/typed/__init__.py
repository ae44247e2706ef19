"""Tables of several types of vertices and of relations between them, made into a typed dataset."""
