"""Descriptions of machines (rates, bandwidths, links, devices) and the built-in machines."""
