"""Message passing layers traced from torch code (SAGA-NN: Scatter, ApplyEdge, Gather, ApplyVertex)."""
