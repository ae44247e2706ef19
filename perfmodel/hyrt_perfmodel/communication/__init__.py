"""Cost of communication between ranks: networks, collectives, traffic of a step, distributed epochs."""
