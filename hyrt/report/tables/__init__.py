"""Tables of predictions, explorations and run series."""
