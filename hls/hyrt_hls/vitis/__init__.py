"""Vitis builds: input files and reports."""
