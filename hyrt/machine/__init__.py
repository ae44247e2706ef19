"""Runtime services without dependencies on graphs: worker threads, buffer pools, CPUs, files, random
numbers.
"""
