"""Layer-wise sampling: a number of sources per layer, by importance, instead of a number of neighbours per
vertex.
"""
