"""Plots for papers, by matplotlib."""
