"""Performance model of a step, fitted to the latest steps and solved for the best assignment."""
