"""A run in simulated time: the pipeline, its shared resources and a policy in the loop."""
