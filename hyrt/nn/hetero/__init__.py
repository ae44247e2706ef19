"""Models for heterogeneous graphs: inputs of several vertex types, embeddings, layers over relations."""
