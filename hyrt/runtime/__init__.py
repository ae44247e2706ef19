"""Runtime services without dependencies on graphs: worker threads, channels, stage threads, buffer pools,
processes, files, random numbers.
"""
