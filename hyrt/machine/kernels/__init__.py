"""Compiled kernels: numba, its kernel cache, and conversions of half-precision floats."""
