"""Sparse operators with exact backward, layers and models of them, and what kernel devices read of them."""
