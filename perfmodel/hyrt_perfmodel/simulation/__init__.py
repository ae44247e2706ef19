"""Simulation of a training run: the pipeline, its shared resources and a policy in the loop."""
