"""How the processes that a launcher has started find each other."""
