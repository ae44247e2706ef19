"""Models for heterogeneous graphs: inputs of several vertex types, node embeddings, layers over relations."""
