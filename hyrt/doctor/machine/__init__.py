"""Checks of the machine: CPUs, memory and its limits, disk, bandwidth."""
