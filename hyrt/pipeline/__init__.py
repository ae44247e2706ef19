"""Pipeline stages of a step: sample, load, transfer, propagate and synchronize."""
