"""What one launch of a trainer gets, how much of it fits, and what its result is."""
