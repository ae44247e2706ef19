"""Run folders: writing, reading and resuming runs."""
