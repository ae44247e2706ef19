"""Operators over full graphs in host memory (GraphPy 6): exact, and without avoidable arrays of |E| rows.

They work on arrays and write into arrays of the caller. Each row of a result is written by one thread and
summed in the order of its edges: equal inputs give equal bits for any number of threads.
"""
