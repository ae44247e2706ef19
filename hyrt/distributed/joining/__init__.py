"""Rendezvous of the processes that a launcher has started."""
