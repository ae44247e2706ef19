"""What a run on a typed graph asks of a machine."""
