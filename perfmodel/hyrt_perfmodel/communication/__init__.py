"""What travelling between ranks takes: networks, collectives, the traffic of a step, an epoch of ranks."""
