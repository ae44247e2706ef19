"""Terms of the performance model: the time of each stage of a step, and the initial assignment."""
