"""Operators over full graphs in host memory (GraphPy 6), without avoidable arrays of |E| rows.

They read arrays and write into arrays of the caller. One thread writes each row of a result and adds its
edges in order, so equal inputs give equal bits for any number of threads.
"""
