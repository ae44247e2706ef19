"""Training on a whole graph in chunks that are copied to devices: schedules and their times (NeuGraph)."""
