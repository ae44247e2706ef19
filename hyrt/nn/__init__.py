"""Sparse operators with exact backward, the layers and models made of them, and their description for kernel devices."""
