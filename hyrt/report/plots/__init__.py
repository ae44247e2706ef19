"""Plots for papers, drawn with matplotlib."""
