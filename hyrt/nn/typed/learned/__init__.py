"""Node embeddings of vertices without features."""
