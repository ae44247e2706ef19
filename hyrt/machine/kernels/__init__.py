"""What numba compiles, and where it keeps it."""
