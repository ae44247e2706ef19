"""Training on several machines: which rank trains what, and what has to travel for it."""
