"""A step over a whole graph before it is made: its sizes, its matrices, its work."""
