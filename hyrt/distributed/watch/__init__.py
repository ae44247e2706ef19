"""What watches a rank of a distributed run, and what the ranks tell each other of it."""
