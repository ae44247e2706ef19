"""The numbers that describe a machine, and the machines that are known."""
