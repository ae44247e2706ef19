"""Message passing layers (SAGA-NN: Scatter, ApplyEdge, Gather, ApplyVertex), traced from torch code."""
