"""Operators over blocks in host memory: compiled loops and their exact backward passes."""
