"""Layer-wise sampling: so many sources a layer, by their importance, instead of so many neighbours a
vertex.
"""
