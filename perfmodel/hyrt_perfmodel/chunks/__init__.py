"""Full-graph training in chunks that are copied to devices: schedules and their times (NeuGraph)."""
