"""Performance model: the time of each stage of a step, the initial assignment, and simulation."""
