"""The performance model of a step, fitted to what the latest steps took, and solved for an assignment."""
