"""GraphSAINT: subgraphs of random walks as mini-batches."""
