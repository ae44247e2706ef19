"""Feature rows of partitioned graphs: local rows, rows fetched from other ranks, and their cache."""
