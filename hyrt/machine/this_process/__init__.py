"""The process that hyrt runs in: what it is set up with, what stops it, and how it ends."""
