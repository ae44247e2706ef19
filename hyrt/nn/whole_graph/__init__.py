"""Operators over whole graphs in host memory (GraphPy 6): exact, without arrays of |E| rows that need not be.

They work on arrays and write into arrays that the caller owns. Every row of a result is written by one thread
and summed in the order of its edges: equal inputs give equal bits for any number of threads.
"""
